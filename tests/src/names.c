/* A library that makes one host name resolve to an address that a test sets.
 *
 * LD_PRELOAD loads the library into the program ordain before libc. The library replaces getaddrinfo: it resolves the
 * name in the variable ORDAIN_NAME to the address in the file whose path is in the variable ORDAIN_NAME_FILE. If the
 * file is empty or missing, the name does not resolve. All other names resolve as usual. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int resolver(const char *, const char *, const struct addrinfo *, struct addrinfo **);

int getaddrinfo(const char *node, const char *service, const struct addrinfo *hints,
                struct addrinfo **found)
{
    resolver *resolve = (resolver *)dlsym(RTLD_NEXT, "getaddrinfo");
    const char *name = getenv("ORDAIN_NAME");
    const char *path = getenv("ORDAIN_NAME_FILE");
    char address[64] = "";
    if (!resolve)
        return EAI_FAIL;
    if (!node || !name || !path || strcmp(node, name))
        return resolve(node, service, hints, found);
    FILE *file = fopen(path, "r");
    if (file) {
        if (!fgets(address, sizeof address, file))
            address[0] = 0;
        fclose(file);
    }
    return address[0] ? resolve(address, service, hints, found) : EAI_NONAME;
}
