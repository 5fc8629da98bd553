#include "engine/model/json.h"

#include <errno.h>

/* Counts without understanding: every bracket outside of strings, every comma
 * and colon as a value. What is no JSON at all is the parser's to say. */
static int check_bounds(const char *text, size_t len, const char *name,
                        struct ocr_err *err)
{
    size_t depth = 0, values = 0;
    bool string = false;

    for (size_t i = 0; i < len; i++) {
        const char c = text[i];

        if (string) {
            string = c != '"';
            i += c == '\\';
        } else if (c == '"') {
            string = true;
        } else if (c == '[' || c == '{') {
            depth++;
            values++;
        } else if (c == ']' || c == '}') {
            depth -= depth > 0;
        } else {
            values += c == ',' || c == ':';
        }
        if (depth > OCR_JSON_DEPTH_MAX)
            return ocr_err_set(err, -EINVAL,
                               "%s: JSON nested deeper than %d levels", name,
                               OCR_JSON_DEPTH_MAX);
        if (values > OCR_JSON_VALUES_MAX)
            return ocr_err_set(err, -EFBIG, "%s: JSON of more than %d values",
                               name, OCR_JSON_VALUES_MAX);
    }
    return 0;
}

json_t *ocr_json_parse(const char *text, size_t len, const char *name,
                       struct ocr_err *err)
{
    json_error_t error;
    json_t *object;

    if (check_bounds(text, len, name, err))
        return NULL;
    object = json_loadb(text, len, JSON_REJECT_DUPLICATES, &error);
    if (!object) {
        ocr_err_set(err, -EINVAL, "%s: bad JSON at byte %d: %s", name,
                    error.position, error.text);
        return NULL;
    }
    if (!json_is_object(object)) {
        ocr_err_set(err, -EINVAL, "%s: not a JSON object", name);
        json_decref(object);
        return NULL;
    }
    return object;
}
