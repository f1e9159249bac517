#include "json.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

static const json NONE = {NULL, 0};

static bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

static const char *skip_space(const char *at, const char *end) {
  while (at < end && is_space(*at)) at++;
  return at;
}

// From the opening quote to behind the closing one.
static const char *skip_string(const char *at, const char *end) {
  for (at++; at < end && *at != '"'; at++) {
    if (*at == '\\') at++;
  }
  return at < end ? at + 1 : end;
}

// From the start of a value to behind it. Counts brackets in place of calling itself: texts may be deep.
static const char *skip_value(const char *at, const char *end) {
  int depth = 0;
  while (at < end) {
    char c = *at;
    if (c == '"') {
      at = skip_string(at, end);
    } else if (c == '{' || c == '[') {
      depth++;
      at++;
    } else if (c == '}' || c == ']') {
      if (depth == 0) return at;
      depth--;
      at++;
    } else if (depth == 0 && (c == ',' || c == ':' || is_space(c))) {
      return at;
    } else {
      at++;
      continue;
    }
    if (depth == 0) return at;
  }
  return at;
}

json json_of(const void *bytes, size_t length) {
  const char *start = bytes, *end = start + length;
  const char *value = skip_space(start, end);
  return (json){value, (size_t)(skip_value(value, end) - value)};
}

bool json_is_there(json value) {
  return value.text != NULL && value.length > 0 && value.text[0] != 'n';
}

// The next value in an object or an array, behind a bracket, a comma or a colon.
bool json_next(json *rest, json *item) {
  const char *end = rest->text + rest->length;
  const char *at = rest->text;
  while (at < end && (is_space(*at) || *at == ',' || *at == ':')) at++;
  if (rest->text == NULL || at == end || *at == ']' || *at == '}') return false;
  const char *behind = skip_value(at, end);
  *item = (json){at, (size_t)(behind - at)};
  *rest = (json){behind, (size_t)(end - behind)};
  return true;
}

json json_items(json array) {
  if (array.text == NULL || array.length < 2 || array.text[0] != '[') return NONE;
  return (json){array.text + 1, array.length - 1};
}

static json field(json object, const char *name, size_t length) {
  if (object.text == NULL || object.length < 2 || object.text[0] != '{') return NONE;
  json rest = {object.text + 1, object.length - 1}, key, value;
  while (json_next(&rest, &key) && json_next(&rest, &value)) {
    if (key.length == length + 2 && memcmp(key.text + 1, name, length) == 0) return value;
  }
  return NONE;
}

json json_at(json value, const char *path) {
  while (*path == '/') {
    const char *name = path + 1;
    size_t length = strcspn(name, "/");
    value = field(value, name, length);
    path = name + length;
  }
  return json_is_there(value) ? value : NONE;
}

json json_inner(json string) {
  if (string.text == NULL || string.length < 2 || string.text[0] != '"') return NONE;
  return (json){string.text + 1, string.length - 2};
}

bool json_is(json value, const char *text) {
  json inner = json_inner(value);
  return inner.text != NULL && inner.length == strlen(text) && memcmp(inner.text, text, inner.length) == 0;
}

bool json_same(json a, json b) {
  return a.text != NULL && b.text != NULL && a.length == b.length && memcmp(a.text, b.text, a.length) == 0;
}

bool json_integer(json value, int64_t least, int64_t most, int64_t *number) {
  char digits[24];
  if (value.text == NULL || value.length == 0 || value.length >= sizeof digits) return false;
  memcpy(digits, value.text, value.length);
  digits[value.length] = '\0';
  char *end;
  *number = strtoll(digits, &end, 10);
  return *end == '\0' && *number >= least && *number <= most;
}

static void append(text *to, const char *bytes, size_t length) {
  if (to->length + length > to->space) {
    to->space = (to->length + length) * 2;
    to->text = realloc(to->text, to->space);
    // The host says that memory is out when a plugin stops after it was refused some.
    if (to->text == NULL) abort();
  }
  memcpy(to->text + to->length, bytes, length);
  to->length += length;
}

// Not snprintf: it is larger than a whole plugin.
static void append_number(text *to, int number) {
  char digits[12];
  size_t at = sizeof digits;
  unsigned rest = number < 0 ? 0u - (unsigned)number : (unsigned)number;
  do {
    digits[--at] = (char)('0' + rest % 10);
    rest /= 10;
  } while (rest > 0);
  if (number < 0) digits[--at] = '-';
  append(to, digits + at, sizeof digits - at);
}

void text_add(text *to, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  while (*format != '\0') {
    size_t plain = strcspn(format, "%");
    append(to, format, plain);
    format += plain;
    if (*format == '\0') break;
    switch (format[1]) {
      case 'J': {
        json value = va_arg(arguments, json);
        append(to, value.text, value.length);
        break;
      }
      case 's': {
        const char *string = va_arg(arguments, const char *);
        append(to, string, strlen(string));
        break;
      }
      case 'd':
        append_number(to, va_arg(arguments, int));
        break;
      default:
        append(to, format + 1, 1);
    }
    format += 2;
  }
  va_end(arguments);
}
