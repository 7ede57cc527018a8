/* image/webp.c - WebP through libwebp: lossy, lossless, the first frame of an animation.
 *
 * The container is read by libwebp's demultiplexer, which refuses a file that is shorter
 * than its RIFF header says. A frame of an animation may cover a part of the canvas; the
 * rest of the first picture is transparent black, of which black is left. */
#include "image/codecs.h"

#include <string.h>
#include <webp/decode.h>
#include <webp/demux.h>

static sib_status decode_frame(sib_image *out, const WebPIterator *frame, const sib_image_source *src, sib_err *err)
{
    WebPDecoderConfig config;
    if (!WebPInitDecoderConfig(&config)) return sib_fail(err, SIB_EUNSUPPORTED, "%s: WebP: another libwebp version", src->name);
    size_t stride = (size_t)out->width * 3;
    size_t at = (size_t)frame->y_offset * stride + (size_t)frame->x_offset * 3;
    config.output.colorspace = MODE_RGB;
    config.output.is_external_memory = 1;
    config.output.u.RGBA.rgba = out->rgb + at;
    config.output.u.RGBA.stride = (int)stride;
    config.output.u.RGBA.size = sib_image_bytes(out) - at;
    VP8StatusCode code = WebPDecode(frame->fragment.bytes, frame->fragment.size, &config);
    WebPFreeDecBuffer(&config.output);
    if (code == VP8_STATUS_OUT_OF_MEMORY) return sib_nomem(err, src->name);
    if (code != VP8_STATUS_OK) return sib_fail(err, SIB_EFORMAT, "%s: WebP: the picture data is damaged (code %d)", src->name, code);
    return SIB_OK;
}

static sib_status decode(sib_image *out, int *orientation, WebPDemuxer *demux, const sib_image_source *src, sib_err *err)
{
    uint32_t width = WebPDemuxGetI(demux, WEBP_FF_CANVAS_WIDTH), height = WebPDemuxGetI(demux, WEBP_FF_CANVAS_HEIGHT);
    SIB_TRY(sib_image_check(src, width, height, err));

    WebPChunkIterator exif;
    if (WebPDemuxGetChunk(demux, "EXIF", 1, &exif)) *orientation = sib_exif_orientation(exif.chunk.bytes, exif.chunk.size);
    WebPDemuxReleaseChunkIterator(&exif);

    WebPIterator frame;
    sib_status s;
    if (!WebPDemuxGetFrame(demux, 1, &frame)) {
        s = sib_fail(err, SIB_EFORMAT, "%s: WebP: no picture in the file", src->name);
    } else if (frame.x_offset < 0 || frame.y_offset < 0 || frame.width < 1 || frame.height < 1 ||
               (uint64_t)frame.x_offset + (uint64_t)frame.width > width ||
               (uint64_t)frame.y_offset + (uint64_t)frame.height > height) {
        s = sib_fail(err, SIB_EFORMAT, "%s: WebP: the first frame lies outside of the canvas", src->name);
    } else if ((s = sib_image_alloc(out, (int)width, (int)height, err)) == SIB_OK) {
        if ((uint32_t)frame.width != width || (uint32_t)frame.height != height) memset(out->rgb, 0, sib_image_bytes(out));
        s = decode_frame(out, &frame, src, err);
    }
    WebPDemuxReleaseIterator(&frame);
    return s;
}

sib_status sib_webp_decode(sib_image *out, int *orientation, const sib_image_source *src, sib_err *err)
{
    WebPDemuxer *demux = WebPDemux(&(WebPData){.bytes = src->p, .size = src->n});
    if (!demux) return sib_fail(err, SIB_EFORMAT, "%s: WebP: the container is damaged or cut short", src->name);
    sib_status s = decode(out, orientation, demux, src, err);
    WebPDemuxDelete(demux);
    return s;
}
