/* examples/generate.c - one answer: the shortest use of libsibyl.
 *
 *   cc examples/generate.c $(pkg-config --cflags --libs sibyl) -o generate
 *   ./generate demo/gemma4-demo "Subtract 17 from 25." */
#include <sibyl/sibyl.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* {"messages":[{"role":"user","content":TEXT}]} with TEXT as a JSON string; the caller frees it. */
static char *request_of(const char *text)
{
    static const char head[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"", tail[] = "\"}]}";
    char *json = malloc(sizeof head + sizeof tail + 6 * strlen(text)), *p = json;
    if (!json) return NULL;
    p += sprintf(p, "%s", head);
    for (; *text; text++)
        if (*text == '"' || *text == '\\')
            p += sprintf(p, "\\%c", *text);
        else if ((unsigned char)*text < 0x20)
            p += sprintf(p, "\\u%04x", (unsigned)*text);
        else
            *p++ = *text;
    (void)sprintf(p, "%s", tail);
    return json;
}

int main(int argc, char **argv)
{
    sib_err err = {SIB_OK, ""};
    sib_engine *engine = NULL;
    sib_session *session = NULL;
    sib_options options;
    sib_request request;
    sib_token token;
    int32_t *ids = NULL;
    size_t n_ids = 0;

    if (argc != 3) return fprintf(stderr, "usage: generate CHECKPOINT QUESTION\n"), 2;
    sib_options_init(&options);
    options.model = argv[1];
    sib_request_init(&request);
    request.temperature = 0; /* greedy */

    char *json = request_of(argv[2]);
    sib_status s = json ? sib_open(&engine, &options, &err) : SIB_ENOMEM;
    if (s == SIB_OK) s = sib_session_new(&session, engine, &err);
    if (s == SIB_OK) s = sib_chat_tokens(engine, json, strlen(json), 0, &ids, &n_ids, &err);
    if (s == SIB_OK) s = sib_session_prompt(session, ids, n_ids, NULL, 0, &request, &err);
    do { /* text comes as it is made, always whole characters */
        if (s == SIB_OK) s = sib_session_next(session, &token, &err);
        if (s == SIB_OK) fwrite(token.text, 1, token.text_bytes, stdout);
    } while (s == SIB_OK && token.finish == SIB_FINISH_NONE);
    if (s == SIB_OK)
        putchar('\n');
    else
        fprintf(stderr, "generate: %s\n", err.message);

    sib_free(ids);
    sib_session_free(session);
    sib_close(engine);
    free(json);
    return s != SIB_OK;
}
