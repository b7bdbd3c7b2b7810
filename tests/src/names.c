/* A name that resolves as a test says.
 *
 * The library is loaded into the host in front of libc (LD_PRELOAD). The file ORDAIN_NAME_FILE has the address to which
 * the name ORDAIN_NAME resolves. If the file is empty, the name does not resolve. All other names resolve as usual. */

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
