/* A coordinator of one worker, for tests of the agent and the context: a ROUTER on a free port that speaks
 * the protocol and does what a test asks. It answers HELLO with WELCOME as rank 0 of 1 and opens a world of
 * that worker; GROUP_READY with GROUP_GO, BYE with BYE_ACK, GROUP_OPEN with a group of the worker alone, and
 * anything from an unknown connection with RESYNC. */
#ifndef PSD_TEST_FAKE_PSD_H
#define PSD_TEST_FAKE_PSD_H

#include "common/clock.h"
#include "common/msg.h"

#define FAKE_PSD_WORLD 1 /* id of the world's group */
#define FAKE_PSD_TOKEN UINT64_C(0x70736474)

typedef struct fake_psd fake_psd;

/* Called on the fake's thread for every message, before the default answer; true: it was dealt with. May use
 * fake_psd_send. */
typedef bool (*fake_psd_hook)(fake_psd *psd, const psd_msg *msg, void *arg);

fake_psd *fake_psd_start(fake_psd_hook hook, void *arg); /* NULL on failure */
void fake_psd_stop(fake_psd *psd);

const char *fake_psd_address(const fake_psd *psd);

/* To the worker. Any thread; fills ident. */
void fake_psd_send(fake_psd *psd, psd_msg *msg);
void fake_psd_send_bytes(fake_psd *psd, const void *data, size_t bytes);

/* Waits until `count` messages of this type have come; false after 10 s. */
bool fake_psd_wait(fake_psd *psd, psd_msg_type type, int count);
int fake_psd_count(fake_psd *psd, psd_msg_type type);
/* The last HELLO and the last message of any type but HELLO and HEARTBEAT; pointers in it are not valid. */
psd_msg fake_psd_last_hello(fake_psd *psd);
psd_msg fake_psd_last(fake_psd *psd);

/* As if psd had been killed and started again: the connection is lost and unknown afterwards. */
void fake_psd_restart(fake_psd *psd);
/* Killed, not started again. */
void fake_psd_vanish(fake_psd *psd);

#endif
