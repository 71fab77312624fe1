#include "worker/launch/stop_job.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <zmq.h>

#include "proto/wire.h"

enum { REQUEST = 1, MOST_OTHERS = 16 };

static bool set_int(void *socket, int option, int value)
{
    return zmq_setsockopt(socket, option, &value, sizeof(value)) == 0;
}

/* What a message of psd says to the request; PSD_INPROGRESS when it is no answer to it. */
static psd_status outcome(const psd_msg *msg, char *why, size_t why_bytes)
{
    psd_status status = PSD_INPROGRESS;
    if (msg->request != REQUEST)
        return status;
    if (msg->type == PSD_MSG_REPLY) {
        status = msg->u.reply.status;
        snprintf(why, why_bytes, "%s", msg->u.reply.text);
    } else if (msg->type == PSD_MSG_REFUSE) {
        status = msg->u.refuse.status < PSD_OK ? msg->u.refuse.status : PSD_ERR_REFUSED;
        snprintf(why, why_bytes, "%s", msg->u.refuse.text);
    }
    return status;
}

/* One message of psd. */
static psd_status receive(void *socket, char *why, size_t why_bytes)
{
    psd_msg_box *box = NULL;
    zmq_msg_t frame;
    psd_status status = PSD_ERR_NO_COORDINATOR;
    zmq_msg_init(&frame);
    if (zmq_msg_recv(&frame, socket, 0) < 0) {
        snprintf(why, why_bytes, "no answer: %s", zmq_strerror(errno));
        goto close_frame;
    }
    status = psd_wire_decode(zmq_msg_data(&frame), zmq_msg_size(&frame), &box, why, why_bytes);
    if (status == PSD_OK)
        status = outcome(&box->msg, why, why_bytes);
close_frame:
    psd_msg_box_free(box);
    zmq_msg_close(&frame);
    return status;
}

static psd_status exchange(void *socket, const psd_wire_buffer *question, char *why, size_t why_bytes)
{
    if (zmq_send(socket, question->data, question->bytes, 0) < 0) {
        snprintf(why, why_bytes, "not sent: %s", zmq_strerror(errno));
        return PSD_ERR_NO_COORDINATOR;
    }
    psd_status status = receive(socket, why, why_bytes);
    for (int i = 0; status == PSD_INPROGRESS && i < MOST_OTHERS; i++) /* psd may ask first who is there */
        status = receive(socket, why, why_bytes);
    if (status != PSD_INPROGRESS)
        return status;
    snprintf(why, why_bytes, "what came was no answer");
    return PSD_ERR_PROTOCOL;
}

psd_status psd_launch_stop_job(const char *coordinator, const char *job, int timeout_ms, char *why,
                               size_t why_bytes)
{
    psd_msg question = {.type = PSD_MSG_QUERY, .request = REQUEST};
    psd_wire_buffer buffer = {0};
    void *socket = NULL;
    void *context = NULL;
    snprintf(question.u.query.view, sizeof(question.u.query.view), "stop");
    snprintf(question.u.query.job, sizeof(question.u.query.job), "%s", job);
    psd_status status = psd_wire_encode(&question, &buffer);
    snprintf(why, why_bytes, "%s", "the message cannot be made");
    if (status != PSD_OK)
        goto free_buffer;
    status = PSD_ERR_IO;
    snprintf(why, why_bytes, "%s", "no socket can be made");
    context = zmq_ctx_new();
    if (context == NULL)
        goto free_buffer;
    socket = zmq_socket(context, ZMQ_DEALER);
    if (socket == NULL)
        goto end_context;
    if (!set_int(socket, ZMQ_LINGER, 0) || !set_int(socket, ZMQ_IPV6, 1) ||
        !set_int(socket, ZMQ_SNDTIMEO, timeout_ms) || !set_int(socket, ZMQ_RCVTIMEO, timeout_ms) ||
        zmq_connect(socket, coordinator) != 0) {
        snprintf(why, why_bytes, "%s: %s", coordinator, zmq_strerror(errno));
        goto close_socket;
    }
    status = exchange(socket, &buffer, why, why_bytes);
close_socket:
    zmq_close(socket);
end_context:
    zmq_ctx_term(context);
free_buffer:
    psd_wire_buffer_free(&buffer);
    return status;
}
