/* examples/chat.c - a conversation on standard input, one message a line. Each turn renders all of it; the session
 * computes only what it has not seen, and says how much that was.
 *
 *   cc examples/chat.c $(pkg-config --cflags --libs sibyl jansson) -o chat
 *   ./chat demo/gemma4-demo */
#define _POSIX_C_SOURCE 200809L /* getline */
#include <sibyl/sibyl.h>

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Appends {"role", "content"}; JSON wants whole UTF-8, so a broken line is refused here. */
static int add_message(json_t *messages, const char *role, const char *text, size_t n)
{
    return json_array_append_new(messages, json_pack("{s:s, s:o}", "role", role, "content", json_stringn(text, n)));
}

/* One answer to the conversation so far, printed as it comes and returned in *reply (malloc'd). */
static sib_status answer(sib_engine *engine, sib_session *session, json_t *messages, char **reply, size_t *n_reply, sib_err *err)
{
    sib_request request;
    sib_token token = {0};
    int32_t *ids = NULL;
    size_t n_ids = 0;
    json_t *context = json_pack("{s:O}", "messages", messages);
    char *json = json_dumps(context, 0);
    json_decref(context);
    if (!json) return SIB_ENOMEM;
    sib_request_init(&request);
    request.temperature = 0;

    sib_status s = sib_chat_tokens(engine, json, strlen(json), 0, &ids, &n_ids, err);
    free(json);
    if (s == SIB_OK) s = sib_session_prompt(session, ids, n_ids, NULL, 0, &request, err);
    while (s == SIB_OK && token.finish == SIB_FINISH_NONE) {
        s = sib_session_next(session, &token, err);
        if (s != SIB_OK || token.text_bytes == 0) continue;
        char *longer = realloc(*reply, *n_reply + token.text_bytes);
        if (!longer) {
            s = SIB_ENOMEM;
            continue;
        }
        *reply = longer;
        memcpy(*reply + *n_reply, token.text, token.text_bytes);
        *n_reply += token.text_bytes;
        fwrite(token.text, 1, token.text_bytes, stdout);
        fflush(stdout);
    }
    sib_free(ids);
    putchar('\n');
    return s;
}

int main(int argc, char **argv)
{
    sib_err err = {SIB_OK, "out of memory"};
    sib_engine *engine = NULL;
    sib_session *session = NULL;
    sib_options options;
    char *line = NULL;
    size_t cap = 0;
    ssize_t n;

    if (argc != 2) return fprintf(stderr, "usage: chat CHECKPOINT\n"), 2;
    sib_options_init(&options);
    options.model = argv[1];
    json_t *messages = json_array();
    sib_status s = sib_open(&engine, &options, &err);
    if (s == SIB_OK) s = sib_session_new(&session, engine, &err);

    while (s == SIB_OK && (n = getline(&line, &cap, stdin)) > 0) {
        char *reply = NULL;
        size_t n_reply = 0;
        sib_stats stats = {.struct_bytes = sizeof stats};
        if (line[n - 1] == '\n') n--;
        if (add_message(messages, "user", line, (size_t)n) != 0) {
            fprintf(stderr, "chat: that line is not UTF-8\n");
            continue;
        }
        s = answer(engine, session, messages, &reply, &n_reply, &err);
        if (s == SIB_OK && add_message(messages, "assistant", reply ? reply : "", n_reply) != 0) s = SIB_ENOMEM;
        if (s == SIB_OK && sib_session_stats(session, &stats) == SIB_OK)
            fprintf(stderr, "[%d prompt tokens, %d of them reused]\n", stats.prompt_tokens, stats.cached_tokens);
        free(reply);
    }
    if (s != SIB_OK) fprintf(stderr, "chat: %s\n", err.message);

    free(line);
    json_decref(messages);
    sib_session_free(session);
    sib_close(engine);
    return s != SIB_OK;
}
