/* tests/unit/chat_test.c - prompts of the demo checkpoint, and how messages are prepared for other templates. */
#include "text/chat.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static sib_chat *parsed(const char *source)
{
    sib_chat *c = NULL;
    sib_err err = {0};
    if (sib_chat_parse(&c, sib_str_of(source), "t", NULL, &err) != SIB_OK) print_message("%s\n", err.message);
    assert_non_null(c);
    return c;
}

static void check(const sib_chat *c, const char *context, const char *want)
{
    sib_buf out = {0};
    sib_err err = {0};
    if (sib_chat_render(c, sib_str_of(context), &out, &err) != SIB_OK) print_message("%s: %s\n", context, err.message);
    assert_int_equal(err.status, SIB_OK);
    assert_string_equal(out.p, want);
    sib_buf_deinit(&out);
}

static void check_error(const sib_chat *c, const char *context, sib_status status, const char *want)
{
    sib_buf out = {0};
    sib_err err = {0};
    assert_int_equal(sib_chat_render(c, sib_str_of(context), &out, &err), status);
    assert_string_equal(err.message, want);
    assert_int_equal(out.n, 0);
    sib_buf_deinit(&out);
}

/* The 200 prompts that the demo model was trained and measured on. */
static void demo_prompts(void **state)
{
    (void)state;
    sib_tokenizer *tokenizer;
    sib_chat *c;
    sib_err err = {0};
    assert_int_equal(sib_tokenizer_open(&tokenizer, "demo/gemma4-demo/tokenizer.json", "demo/gemma4-demo/tokenizer_config.json", &err), SIB_OK);
    assert_int_equal(sib_chat_open(&c, "demo/gemma4-demo", tokenizer, &err), SIB_OK);
    assert_non_null(c);
    assert_true(sib_chat_takes_images(c));
    sib_tokenizer_free(tokenizer);
    FILE *f = fopen("demo/tasks.jsonl", "r");
    assert_non_null(f);
    char *line = NULL;
    size_t cap = 0, rows = 0, with_system = 0, with_tools = 0;
    while (getline(&line, &cap, f) > 0) {
        json_t *task = json_loads(line, 0, NULL), *messages = json_array(), *tools = json_object_get(task, "tools");
        const char *system = json_string_value(json_object_get(task, "system"));
        if (system && *system) {
            json_array_append_new(messages, json_pack("{s:s,s:s}", "role", "system", "content", system));
            with_system++;
        }
        json_array_append_new(messages, json_pack("{s:s,s:O}", "role", "user", "content", json_object_get(task, "question")));
        json_t *context = json_pack("{s:o}", "messages", messages);
        if (tools) json_object_set(context, "tools", tools);
        with_tools += tools != NULL;
        char *text = json_dumps(context, JSON_COMPACT);
        check(c, text, json_string_value(json_object_get(task, "prompt")));
        free(text);
        json_decref(context);
        json_decref(task);
        rows++;
    }
    free(line);
    fclose(f);
    print_message("%zu prompts equal, %zu with a system text, %zu with tools\n", rows, with_system, with_tools);
    assert_int_equal(rows, 200);
    check(c, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\",\"image_url\":{\"url\":\"data:,x\"}},{\"type\":\"input_text\",\"text\":\"What?\"}]}]}",
          "<bos><|turn>user\n<|image|>What?<turn|>\n<|turn>model\n");
    check(c, "{\"add_generation_prompt\":false,\"messages\":[{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"b\\\": 12345678901234567890, \\\"a\\\": \\\"x\\\"}\"}}]}]}",
          "<bos><|turn>model\n<|tool_call>call:f{a:<|\"|>x<|\"|>,b:12345678901234567890}<tool_call|><turn|>\n");
    sib_chat_free(c);
}

static void text_templates(void **state)
{
    (void)state;
    sib_chat *c = parsed("{% for m in messages %}<{{ m.role + '>' + m.content }}{% endfor %}{% if add_generation_prompt %}<A>{% endif %}");
    assert_false(sib_chat_takes_images(c));
    check(c, "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}", "<user>a<A>");
    check(c, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},\"b\",{\"type\":\"input_text\",\"text\":\"c\"}]}],\"add_generation_prompt\":false}", "<user>abc");
    check(c, "{\"messages\":[{\"role\":\"assistant\",\"content\":null},{\"role\":\"assistant\"},{\"role\":\"user\",\"content\":[]}]}", "<assistant><assistant><user><A>");
    check_error(c, "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"user\",\"content\":[{\"type\":\"image\"}]}]}", SIB_EARG,
                "chat request: messages[1] has a picture, and the chat template has no place for one");
    check_error(c, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"input_audio\"}]}]}", SIB_EARG,
                "chat request: messages[0] has a part of type \"input_audio\", and the chat template takes text only");
    check_error(c, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}]}", SIB_EARG, "chat request: messages[0] has a text part without text");
    check_error(c, "{\"messages\":{}}", SIB_EARG, "chat request: \"messages\" must be a list");
    check_error(c, "{\"messages\":[1]}", SIB_EARG, "chat request: messages[0] is not an object");
    check_error(c, "[]", SIB_EARG, "chat request: a JSON object with \"messages\" is expected");
    check_error(c, "{", SIB_EARG, "chat request: invalid JSON at byte 1: a key is missing");
    sib_chat_free(c);
}

static void part_templates(void **state)
{
    (void)state;
    sib_chat *c = parsed("{% for m in messages %}{{ m.role }}:{% for p in m.content %}{{ p.text if p.type == 'text' else '<' ~ p.type ~ '>' }}{% endfor %};{% endfor %}");
    assert_true(sib_chat_takes_images(c));
    check(c, "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"},{\"role\":\"user\",\"content\":[{\"type\":\"input_image\"},{\"type\":\"text\",\"text\":\"x\"},{\"type\":\"video\"}]}]}", "user:hi;user:<image>x<video>;");
    sib_chat_free(c);
}

static void calls_and_reasoning(void **state)
{
    (void)state;
    sib_chat *c = parsed("{% for m in messages %}{{ m.content is none }} {{ m.reasoning }}{{ m.reasoning_content }} {% for t in m.tool_calls or [] %}"
                         "{{ (t.function or t).arguments|tojson }} {% endfor %}{% endfor %}{{ tools is none }} {{ documents is none }} {{ mode }}");
    check(c, "{\"messages\":[{\"role\":\"assistant\",\"content\":null,\"reasoning\":\"r\",\"tool_calls\":[{\"function\":{\"arguments\":\"{\\\"z\\\":1.0,\\\"a\\\":[]}\"}},"
             "{\"function\":{\"arguments\":\" \"}},{\"function\":{\"arguments\":\"not json\"}},{\"function\":{\"arguments\":\"[1]\"}},{\"arguments\":\"{}\"},{\"function\":{\"arguments\":{\"k\":2}}}]}],"
             "\"mode\":1,\"chat_template_kwargs\":{\"mode\":2}}",
          "True rr {\"z\": 1.0, \"a\": []} {} \"not json\" \"[1]\" {} {\"k\": 2} True True 2");
    check(c, "{\"messages\":[{\"role\":\"assistant\",\"content\":\"\",\"reasoning_content\":\"q\"}],\"tools\":[]}", "False qq False True ");
    sib_chat_free(c);
    c = parsed("{{ raise_exception('roles must alternate') if messages|length > 1 else messages[0].content }}");
    check_error(c, "{\"messages\":[{},{}]}", SIB_EARG, "roles must alternate");
    sib_chat_free(c);
}

/* ---- where the template is -------------------------------------------------------------------------------- */

static void write_file(const char *dir, const char *name, const char *text)
{
    char path[300];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void check_dir(const char *dir, const char *context, const char *want)
{
    sib_chat *c;
    sib_err err = {0};
    assert_int_equal(sib_chat_open(&c, dir, NULL, &err), SIB_OK);
    assert_non_null(c);
    check(c, context, want);
    sib_chat_free(c);
}

static void places(void **state)
{
    (void)state;
    char dir[] = "/tmp/sibyl-chat-XXXXXX", sub[100];
    const char *plain = "{\"messages\":[]}", *tools = "{\"messages\":[],\"tools\":[{}]}";
    sib_chat *c;
    sib_err err = {0};
    assert_non_null(mkdtemp(dir));
    assert_int_equal(sib_chat_open(&c, dir, NULL, &err), SIB_OK);
    assert_null(c);
    write_file(dir, "chat_template.json", "{\"chat_template\":\"json\"}");
    check_dir(dir, plain, "json");
    write_file(dir, "tokenizer_config.json", "{\"model_max_length\":1000000000000000019884624838656,\"chat_template\":\"one\"}");
    check_dir(dir, tools, "one");
    write_file(dir, "tokenizer_config.json", "{\"chat_template\":[{\"name\":\"rag\",\"template\":\"{{ no\"},{\"name\":\"tool_use\",\"template\":\"t\"},{\"name\":\"default\",\"template\":\"d\"}]}");
    check_dir(dir, plain, "d");
    check_dir(dir, tools, "t");
    write_file(dir, "chat_template.jinja", "file");
    check_dir(dir, tools, "file");
    snprintf(sub, sizeof sub, "%s/additional_chat_templates", dir);
    assert_int_equal(mkdir(sub, 0700), 0);
    write_file(sub, "tool_use.jinja", "more");
    check_dir(dir, plain, "file");
    check_dir(dir, tools, "more");
    write_file(dir, "chat_template.jinja", "\n{{ broken");
    assert_int_equal(sib_chat_open(&c, dir, NULL, &err), SIB_OK);
    assert_non_null(c);
    sib_buf out = {0};
    assert_int_equal(sib_chat_render(c, sib_str_of(plain), &out, &err), SIB_EFORMAT);
    assert_non_null(strstr(err.message, "chat_template.jinja: line 2: "));
    sib_chat_free(c);
    static const char *const made[] = {"additional_chat_templates/tool_use.jinja", "additional_chat_templates", "chat_template.jinja", "chat_template.json", "tokenizer_config.json", ""};
    for (size_t i = 0; i < sizeof made / sizeof made[0]; i++) {
        snprintf(sub, sizeof sub, "%s/%s", dir, made[i]);
        assert_int_equal(remove(sub), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(demo_prompts), cmocka_unit_test(text_templates), cmocka_unit_test(part_templates), cmocka_unit_test(calls_and_reasoning), cmocka_unit_test(places),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
