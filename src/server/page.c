/* server/page.c - the bytes of page.html. The assembler reads the file from the repository's root, where make runs; the
 * Makefile names it as something that this object depends on. */
#include "server/page.h"

__asm__(".section .rodata\n"
        ".globl sib_page, sib_page_end\n"
        ".hidden sib_page, sib_page_end\n"
        "sib_page:\n"
        ".incbin \"src/server/page.html\"\n"
        "sib_page_end:\n"
        ".byte 0\n"
        ".previous\n");
