/* Inside of the agent: agent.c is what other threads call, agent_loop.c what the agent's thread does. */
#ifndef PSD_AGENT_IMPL_H
#define PSD_AGENT_IMPL_H

#include <pthread.h>

#include "worker/agent.h"

#define AGENT_SUBSYSTEM "agent"

#define AGENT_TELLS_KEPT    64 /* for a resync */
#define AGENT_TELL_KEPT     (60 * PSD_NS_PER_S)
#define AGENT_OUTBOX_MAX    4096                         /* messages not yet sent */
#define AGENT_INBOX_MAX     4096                         /* messages not yet taken */
#define AGENT_HELLO_EVERY   (500 * PSD_NS_PER_MS)        /* until psd answers, and again after a resync */
#define AGENT_HELLO_LEAST   (50 * PSD_NS_PER_MS)         /* between two, however many RESYNCs come */
#define AGENT_WAITING_EVERY PSD_NS_PER_S                 /* once psd has said WAITING */
#define AGENT_BYE_ALONE     (2 * PSD_NS_PER_S)           /* how long BYE waits without a connection to psd */
#define AGENT_GIVEN_UP      64                           /* requests for groups remembered as given up */
#define AGENT_MONITOR       "inproc://psd-agent-monitor" /* its context is the agent's own */

/* A message on its way to psd. A call stays until its caller has the answer or gives up; a tell until it is
 * old. */
typedef struct agent_out {
    struct agent_out *next;
    psd_wire_buffer frame;
    psd_msg_type type;
    psd_time_ns made;
    bool sent;
    bool is_call;
    uint64_t request;   /* calls: also the key of the answer */
    psd_msg_box *reply; /* calls: the answer, once it is there */
} agent_out;

/* A message that waits to be taken. */
typedef struct agent_in {
    struct agent_in *next;
    psd_msg_box *box;
} agent_in;

typedef enum agent_state {
    AGENT_JOINING = 0,
    AGENT_JOINED = 1,
    AGENT_OUT = 2, /* refused; `status` and `text` say why */
} agent_state;

struct psd_agent {
    char coordinator[256];
    psd_ident ident;
    psd_agent_hooks hooks;
    void *zmq;
    void *socket;  /* the agent thread's once it runs */
    void *monitor; /* tells of new connections */
    int wake_fd;
    pthread_t thread;

    pthread_mutex_t lock; /* all below */
    pthread_cond_t changed;
    bool stop;
    bool stopped_by_job; /* STOP has come */
    bool heard;          /* anything from psd at all */
    bool connected;      /* psd takes messages, as far as the agent's thread last saw */
    psd_time_ns cut_at;  /* when it was last seen not to, unless connected; 0: not looked yet */
    bool bye_acked;
    agent_state state;
    psd_status status;       /* AGENT_OUT */
    char text[PSD_MAX_TEXT]; /* AGENT_JOINING: what psd last said; AGENT_OUT, STOP: why */
    psd_msg_welcome welcome; /* AGENT_JOINED */
    agent_out *outbox;       /* in order of sending */
    agent_out **outbox_tail;
    int unsent;
    agent_in *inbox; /* in order of arrival */
    agent_in **inbox_tail;
    int inbox_count;
    uint64_t next_request;
    uint64_t given_up[AGENT_GIVEN_UP]; /* ring */
    uint64_t given_up_count;
    uint64_t ignored;

    /* the agent thread's alone */
    psd_msg_hello hello;
    bool synced; /* psd knows this connection: HELLO was answered by WELCOME, no RESYNC since */
    psd_time_ns hello_due;
    psd_time_ns hello_sent;
    psd_time_ns heartbeat_due;
    psd_time_ns look_every;
    psd_time_ns look_due;
    bool blocked; /* something could not be sent in this turn: the socket is full or not connected */
    psd_wire_buffer scratch;
};

void *agent_loop(void *agent);

/* Under the lock. */
psd_status agent_enqueue(psd_agent *agent, const psd_msg *msg, bool is_call, agent_out **out);
void agent_unlink_out(psd_agent *agent, agent_out *entry);
void agent_out_free(agent_out *entry);
void agent_inbox_drop(psd_agent *agent, agent_in **link);
/* The group or plan id that an unsolicited message is about; 0 if none. */
uint32_t agent_msg_key(const psd_msg *msg);
bool agent_msg_is_for_group(psd_msg_type type);

#endif
