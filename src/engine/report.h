/* engine/report.h - what a folder is and what it needs, as JSON, without reading weights.
 *
 * Both run the loader's own code on a device that only counts (ops/nothing.h), so shapes, missing
 * tensors and bytes are what a real load would find. */
#ifndef SIB_ENGINE_REPORT_H
#define SIB_ENGINE_REPORT_H

#include "base/str.h"

/* {"path","kind":"model|drafter","family"|"drafter","model_type","config":{...},"tensors":{...},"quantization":[...],
 * "offers":[...]|"needs":[...],"target":{...},"memory":[{"ctx","weights","cache","step","results","total"}],"error"?}. A checkpoint that would not
 * load still gets a report, with "error". */
sib_status sib_inspect_json(sib_buf *out, const char *place, sib_err *err);

/* {"ctx","parallel","numerics","parts":[{"name","bytes"}],"total_bytes","machine":{"memory_bytes","available_bytes"},"fits",
 * "largest_ctx"}: exact bytes of the device memory that sib_open will take. */
sib_status sib_fit_json(sib_buf *out, const sib_options *o, int parallel, sib_err *err);

#endif
