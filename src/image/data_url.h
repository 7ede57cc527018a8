/* image/data_url.h - pictures that arrive inside a JSON request: base64 and data: URLs.
 *
 * Base64 as RFC 4648 has it, the standard or the URL-safe alphabet, with or without padding,
 * white space (space, tab, CR, LF) anywhere; whatever else is an error: other characters,
 * padding that is not at the end or not complete, a lone last character, unused bits that
 * are not zero. Data URLs as RFC 2397 has them; the media type is not believed and only
 * skipped, since the decoder looks at the bytes. */
#ifndef SIB_IMAGE_DATA_URL_H
#define SIB_IMAGE_DATA_URL_H

#include "base/str.h"

/* Appends the decoded bytes to *out. EFORMAT names the offset of the fault; ECAPACITY when
 * more than max_bytes come out; ENOMEM. On failure *out keeps only what it had. */
sib_status sib_base64_decode(sib_buf *out, sib_str text, size_t max_bytes, sib_err *err);

/* Whether the text begins with "data:" (in any case). */
bool sib_is_data_url(sib_str url);

/* The same for `data:[media type][;parameter]...[;base64],DATA`. Percent-encoded bytes
 * (%41) are decoded; without ";base64" they and the plain characters are the data. */
sib_status sib_data_url_decode(sib_buf *out, sib_str url, size_t max_bytes, sib_err *err);

#endif
