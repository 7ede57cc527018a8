/* cli/answer.h - from a command line to an answer: open a checkpoint, read texts and
 * pictures, build messages, run one answer. Used by the commands that make tokens. */
#ifndef SIB_CLI_ANSWER_H
#define SIB_CLI_ANSWER_H

#include "base/json.h"
#include "cli/options.h"

/* Puts the demo checkpoint into a->options.model when -m is absent. */
sib_status cli_use_model(cli_args *a, sib_err *err);
/* Opens a->options (cli_use_model included) with the loading bar, and logs to stderr as --log says. */
sib_status cli_open(sib_engine **e, cli_args *a, sib_err *err);

/* The text itself, or standard input for "-" or NULL, checked to be UTF-8; `what` names it in the
 * sentence. SIB_EARG: the text was an argument and is wrong. */
sib_status cli_read_text(const char *z, const char *what, sib_buf *out, sib_err *err);

/* Draws request.seed unless --seed gave it. */
sib_status cli_random_seed(cli_args *a, sib_err *err);

/* Picture files held in memory. */
typedef struct cli_pictures {
    sib_picture *v;
    sib_buf *files;
    char **names;
    int n;
} cli_pictures;

sib_status cli_picture_add(cli_pictures *p, const char *path, sib_err *err);
void cli_pictures_deinit(cli_pictures *p);

/* {"role", "content"}: a string, or with pictures a list of parts, pictures first. A picture's part is
 * {"type":"image","path"}. NULL without memory. */
json_t *cli_message(const char *role, sib_str text, const char *const *images, int n_images);

unsigned cli_chat_flags(const cli_args *a); /* for sib_chat_tokens */

/* Renders {"messages", "tools" unless NULL} and tokenizes it; flags as for sib_chat_tokens. *text (may be NULL) and *ids are the caller's. */
sib_status cli_render(const sib_engine *e, json_t *messages, json_t *tools, char **text, size_t *text_bytes,
                      unsigned flags, int32_t **ids, size_t *n_ids, sib_err *err);

/* A diffusion canvas after a step. */
typedef void (*cli_frame_fn)(void *ctx, const char *text, size_t n, int step, int steps);

typedef struct cli_answer {
    cli_frame_fn frame; /* set before the run; NULL: no frames are asked for. Gets the run's ctx */
    sib_buf text;
    sib_ids ids;         /* with the stop token                         */
    bool has_stop_token; /* the last of ids is what ended the answer     */
    sib_finish finish;
    sib_stats stats;
} cli_answer;

typedef void (*cli_text_fn)(void *ctx, const char *text, size_t n);

/* One answer to `ids`; `show` (may be NULL) gets the text as it comes. Ctrl-C ends it with
 * SIB_FINISH_CANCELLED and SIB_OK. Starts from a cli_answer that is zero but for `frame`. */
sib_status cli_answer_run(cli_answer *out, sib_session *s, const int32_t *ids, size_t n_ids,
                          const cli_pictures *pictures, const sib_request *r, cli_text_fn show, void *ctx,
                          sib_err *err);
void cli_answer_deinit(cli_answer *a);

const char *cli_finish_name(sib_finish f);
double cli_per_second(int tokens, double ms);
double cli_decode_rate(const sib_stats *s); /* tokens a second after the first */
/* Parts of an answer in a few words: "30 prompt tokens (210.0/s), 12 tokens (45.1/s), ..." */
void cli_describe(const sib_stats *s, sib_buf *out);

#endif
