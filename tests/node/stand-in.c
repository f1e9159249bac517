// Stands in for what the samples run. Without an argument it only holds the namespaces of a pod. With a port it answers every
// request on $PORT, or else on that port. With another argument it says so and ends. On SIGTERM it ends at once.
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static void end(int signal) { (void)signal; _exit(0); }

static void reap(int signal) {
    (void)signal;
    while (waitpid(-1, NULL, WNOHANG) > 0) {
    }
}

int main(int count, char **arguments) {
    signal(SIGTERM, end);
    signal(SIGINT, end);
    signal(SIGPIPE, SIG_IGN);
    if (count == 1) {
        signal(SIGCHLD, reap);
        for (;;)
            pause();
    }
    int port = atoi(arguments[1]);
    if (port == 0) {
        printf("%s\n", arguments[1]);
        return 0;
    }
    if (getenv("PORT"))
        port = atoi(getenv("PORT"));
    int listener = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 16)) {
        perror("cannot listen");
        return 1;
    }
    for (;;) {
        static const char answer[] = "HTTP/1.1 200 OK\r\nContent-Length: 6\r\nConnection: close\r\n\r\nhello\n";
        char request[4096];
        int client = accept(listener, NULL, NULL);
        if (client < 0)
            continue;
        if (read(client, request, sizeof request) > 0 && write(client, answer, strlen(answer)) < 0)
            perror("cannot answer");
        close(client);
    }
}
