/* text/chat.h - a checkpoint's chat template: messages and tools as JSON in, prompt text out.
 *
 * The template is chat_template.jinja, else `chat_template` of tokenizer_config.json (text, or a list of named ones),
 * else that of chat_template.json; a second one named tool_use (in the list, or additional_chat_templates/tool_use.jinja)
 * takes the requests that have tools (formats.md D.1). It is parsed once, at open, and tried on small messages to learn
 * what it can take; a render then prepares the messages so that templates see what they were written for:
 *
 *   tool_calls[].function.arguments   JSON text becomes the object it stands for; what is no object stays text
 *   content parts                     input_text and the like become {"type": "text", "text": ...}, every kind of
 *                                     picture {"type": "image"}; joined to one text where the template wants texts,
 *                                     and a text made a part where it wants parts
 *   content null or missing           "" where the template cannot take null
 *   reasoning, reasoning_content      either one sets both
 *   chat_template_kwargs              its members become variables, and win over others
 *
 * Defaults: tools and documents null, add_generation_prompt true, and every special token by its name in
 * tokenizer_config.json (bos_token, ...). A chat is immutable and may be rendered from several threads. */
#ifndef SIB_TEXT_CHAT_H
#define SIB_TEXT_CHAT_H

#include "text/template.h"
#include "text/tokenizer.h"

typedef struct sib_chat sib_chat;

/* *out is NULL with SIB_OK when `dir` has no template; one that does not parse opens too, and each rendering gives its
 * error. The tokenizer (may be NULL) is read during the call only. */
sib_status sib_chat_open(sib_chat **out, const char *dir, const sib_tokenizer *tokenizer, sib_err *err);
/* The same from a template's source; `name` goes into error sentences. */
sib_status sib_chat_parse(sib_chat **out, sib_str source, const char *name, const sib_tokenizer *tokenizer, sib_err *err);
void sib_chat_free(sib_chat *c);

/* Whether the template leaves a mark for a picture; without it a message with one is SIB_EARG. */
bool sib_chat_takes_images(const sib_chat *c);

/* `context`: a JSON object with "messages" and any other variables. Appends to `out`. An exception that the template
 * raises is SIB_EARG with its message as the sentence. */
sib_status sib_chat_render(const sib_chat *c, sib_str context, sib_buf *out, sib_err *err);
/* The same, and `given` gets the parts of the new text (as offsets into `out`) that stand there because the request
 * says so: copied or made from its strings, whatever the template did with them. Roles, and settings beside the
 * messages, that are one plain word ("user", "high") do not count: templates build their own tokens with these.
 * Encoded with sib_tokenizer_encode_given, what a client wrote cannot become a special token. */
sib_status sib_chat_render_given(const sib_chat *c, sib_str context, sib_buf *out, sib_spans *given, sib_err *err);
/* With the limits and the time of `opt`, and details of a template's failure in `fault`; each may be NULL. */
sib_status sib_chat_render_with(const sib_chat *c, sib_str context, const sib_template_options *opt, sib_buf *out,
                                sib_template_fault *fault, sib_err *err);

#endif
