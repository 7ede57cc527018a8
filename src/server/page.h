/* server/page.h - the web page of the server: page.html, put into the program by page.c. */
#ifndef SIB_SERVER_PAGE_H
#define SIB_SERVER_PAGE_H

extern const char sib_page[], sib_page_end[];

#endif
