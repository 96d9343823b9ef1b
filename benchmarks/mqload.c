/* mqload: closed- or open-loop MQTT load generator (one thread, epoll). Loopback only.
 *
 * Publishers and subscribers live in one process, so a closed loop (-w) bounds what is in flight and no
 * broker is pushed into dropping. Every payload carries its send time, its publisher and a sequence
 * number, so loss, repeats and reordering are counted, not assumed away. Prints one JSON line.
 *
 *   -h host -p ports | -u unix-socket   where the broker is       -v 4|5   protocol version
 *        several ports, by comma: publisher j takes the j-th of them, and so does subscriber j
 *   -P publishers -S subscribers -T topics   client j uses topic bench/<j mod T>/data
 *   -o word   topics begin with it, not with bench
 *   -n   subscribers take bench/# instead    -g   subscribers share one group ($share/g/...)
 *   -c   subscribers keep their session (clean = 0; session expiry 600 s in v5)
 *   -q qos   -s payload bytes (>= 16)        -k filters  each subscriber also holds that many idle filters
 *   -w window   closed loop: messages in flight per publisher     -r rate   open loop: messages/s in all
 *   -W warm-up seconds   -d measured seconds
 *   -I n   instead: open n idle connections, print the connect rate, hold them for -d seconds
 *   -A ports   subscribers connect to these ports instead
 *   -i seconds   print a line at the beginning of the measurement and after each such time of it
 *   -b     each idle connection subscribes to a topic of its own
 *   -x     over WebSocket (RFC 6455), at /mqtt          -t     over TLS; the certificate is not looked at
 * Build: cc -O2 -o mqload mqload.c, and for -t: cc -O2 -DTLS -o mqload mqload.c -lssl -lcrypto */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>
#ifdef TLS
#include <openssl/err.h>
#include <openssl/ssl.h>
static SSL_CTX *tls_context;
#endif

typedef struct {
  int fd, role, idx, state, want_out;
  uint16_t pid;
  uint8_t *out;
  size_t ol, oc;
  uint8_t *in;
  size_t il, ic;
  uint64_t sent, acked;
  int noise_sent, window;
  uint32_t *next; /* a subscriber's next expected sequence number, by publisher */
  char topic[64];
#ifdef TLS
  SSL *tls;
#endif
  uint8_t *wire; /* WebSocket: frames that are on their way out */
  size_t wl, wc;
  uint8_t *raw; /* WebSocket: what came and is not a whole frame yet */
  size_t rl, rc;
} conn;
static int websocket, tls, subscribes;
#define MOST_PORTS 64
typedef struct {
  int n, each[MOST_PORTS];
} ports;
static ports port = {1, {1883}}, other_port;
static int P = 1, S = 1, T = 1, Q = 0, SZ = 64, V = 4, W = 1000, wild = 0, idle = 0, share = 0, batchconn = 200;
static double D = 5, R = 0, warm = 1, interval = 0;
static const char *host = "127.0.0.1";
static const char *prefix = "bench";
static const char *unixpath = NULL;
static conn *cs;
static int N, ep;
static uint64_t delivered, published, puback_n, reordered;
static int noise, persist;
static int ready;
static uint64_t *lat;
static size_t latn, latcap = 4000000;
static int measuring;
static uint64_t m_del, m_pub;
static ports ports_of(char *text) {
  ports found = {0};
  for (char *each = strtok(text, ","); each && found.n < MOST_PORTS; each = strtok(NULL, ","))
    found.each[found.n++] = atoi(each);
  if (!found.n) {
    fprintf(stderr, "no port\n");
    exit(2);
  }
  return found;
}
static int port_of(conn *c) {
  ports *p = other_port.n && c->role == 2 ? &other_port : &port;
  return p->each[c->idx % p->n];
}
static uint64_t now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000ull + t.tv_nsec;
}
static void need(uint8_t **b, size_t *c, size_t n) {
  if (n > *c) {
    size_t k = *c ? *c : 4096;
    while (k < n)
      k *= 2;
    *b = realloc(*b, k);
    *c = k;
  }
}
static void put(conn *c, const void *d, size_t n) {
  need(&c->out, &c->oc, c->ol + n);
  memcpy(c->out + c->ol, d, n);
  c->ol += n;
}
static void arm(conn *c, int o) {
  if (c->want_out == o)
    return;
  c->want_out = o;
  struct epoll_event e = {.events = EPOLLIN | (o ? EPOLLOUT : 0), .data.ptr = c};
  epoll_ctl(ep, EPOLL_CTL_MOD, c->fd, &e);
}
/* The three ways to a socket: as it is, and through OpenSSL; -1 with EAGAIN where it takes or has nothing. */
static ssize_t transmit(conn *c, const void *d, size_t n) {
#ifdef TLS
  if (c->tls) {
    int k = SSL_write(c->tls, d, n > 1 << 20 ? 1 << 20 : n);
    if (k > 0)
      return k;
    int e = SSL_get_error(c->tls, k);
    if (e == SSL_ERROR_WANT_WRITE || e == SSL_ERROR_WANT_READ)
      errno = EAGAIN;
    return -1;
  }
#endif
  return send(c->fd, d, n, MSG_NOSIGNAL);
}
static ssize_t receive(conn *c, void *d, size_t n) {
#ifdef TLS
  if (c->tls) {
    int k = SSL_read(c->tls, d, n);
    if (k > 0)
      return k;
    int e = SSL_get_error(c->tls, k);
    if (e == SSL_ERROR_ZERO_RETURN)
      return 0;
    if (e == SSL_ERROR_WANT_WRITE || e == SSL_ERROR_WANT_READ)
      errno = EAGAIN;
    return -1;
  }
#endif
  return recv(c->fd, d, n, 0);
}
static size_t out_of(conn *c, uint8_t *b, size_t n) {
  size_t o = 0;
  while (o < n) {
    ssize_t k = transmit(c, b + o, n - o);
    if (k < 0) {
      if (errno == EAGAIN)
        break;
      perror("send");
      exit(3);
    }
    o += k;
  }
  memmove(b, b + o, n - o);
  return n - o;
}
/* What waits goes into binary frames of at most 4 KiB, masked, as a client's must be, with a key of zeros. */
static void wrap(conn *c) {
  for (size_t o = 0; o < c->ol;) {
    size_t n = c->ol - o > 4096 ? 4096 : c->ol - o;
    need(&c->wire, &c->wc, c->wl + n + 8);
    uint8_t *b = c->wire + c->wl;
    int k = 0;
    b[k++] = 0x82;
    if (n < 126) {
      b[k++] = 0x80 | n;
    } else {
      b[k++] = 0x80 | 126;
      b[k++] = n >> 8;
      b[k++] = n & 255;
    }
    memset(b + k, 0, 4);
    k += 4;
    memcpy(b + k, c->out + o, n);
    c->wl += k + n;
    o += n;
  }
  c->ol = 0;
}
static void flushc(conn *c) {
  if (websocket) {
    wrap(c);
    c->wl = out_of(c, c->wire, c->wl);
  } else {
    c->ol = out_of(c, c->out, c->ol);
  }
  arm(c, c->ol + c->wl > 0);
}
/* Move the payloads of whole frames from raw to in. */
static void unwrap(conn *c) {
  size_t o = 0;
  for (;;) {
    size_t left = c->rl - o, head = 2, n;
    uint8_t *b = c->raw + o;
    if (left < 2)
      break;
    n = b[1] & 127;
    if (n == 126) {
      head = 4;
      if (left < 4)
        break;
      n = (size_t)b[2] << 8 | b[3];
    } else if (n == 127) {
      head = 10;
      if (left < 10)
        break;
      n = 0;
      for (int i = 2; i < 10; i++)
        n = n << 8 | b[i];
    }
    if (left < head + n)
      break;
    int op = b[0] & 15;
    if (op == 8) {
      fprintf(stderr, "websocket closed\n");
      exit(6);
    }
    if (op < 3) {
      need(&c->in, &c->ic, c->il + n);
      memcpy(c->in + c->il, b + head, n);
      c->il += n;
    }
    o += head + n;
  }
  memmove(c->raw, c->raw + o, c->rl - o);
  c->rl -= o;
}
static int vlen(uint8_t *p, size_t n) {
  int i = 0;
  do {
    p[i] = n & 127;
    n >>= 7;
    if (n)
      p[i] |= 128;
    i++;
  } while (n);
  return i;
}
static void do_connect(conn *c) {
  uint8_t b[128];
  char id[40];
  int il = snprintf(id, 40, "%s%d-%d", c->role == 1 ? "p" : c->role == 2 ? "s" : "i", c->idx, (int)getpid());
  int keep = persist && c->role == 2, props = V == 5 ? (keep ? 6 : 1) : 0;
  size_t rl = 10 + props + 2 + il;
  int k = 0;
  b[k++] = 0x10;
  k += vlen(b + k, rl);
  memcpy(b + k, "\0\4MQTT", 6);
  k += 6;
  b[k++] = V;
  b[k++] = keep ? 0 : 2;
  b[k++] = 0;
  b[k++] = 0;
  if (V == 5) {
    b[k++] = keep ? 5 : 0;
    if (keep) { /* session expiry interval: 600 s */
      memcpy(b + k, "\x11\0\0\2\x58", 5);
      k += 5;
    }
  }
  b[k++] = il >> 8;
  b[k++] = il & 255;
  memcpy(b + k, id, il);
  k += il;
  put(c, b, k);
  flushc(c);
}
static void do_sub(conn *c) {
  uint8_t b[160];
  char t[80], f[120];
  if (wild)
    snprintf(t, 80, "%s/#", prefix);
  else if (c->role == 3)
    snprintf(t, 80, "idle/%d/data", c->idx);
  else
    snprintf(t, 80, "%s/%d/data", prefix, c->idx % T);
  if (c->noise_sent < noise) { /* idle filters: exact, one-level and multi-level wildcards in turn */
    static const char *shape[3] = {"noise/%d/%d/value", "noise/%d/+/%d", "noise/%d/%d/#"};
    snprintf(t, 80, shape[c->noise_sent % 3], c->idx, c->noise_sent);
  }
  int last = c->noise_sent++ >= noise;
  int fl = share && last ? snprintf(f, 120, "$share/g/%s", t) : snprintf(f, 120, "%s", t);
  size_t rl = 2 + (V == 5 ? 1 : 0) + 2 + fl + 1;
  int k = 0;
  b[k++] = 0x82;
  k += vlen(b + k, rl);
  b[k++] = 0;
  b[k++] = 1;
  if (V == 5)
    b[k++] = 0;
  b[k++] = fl >> 8;
  b[k++] = fl & 255;
  memcpy(b + k, f, fl);
  k += fl;
  b[k++] = Q;
  put(c, b, k);
  flushc(c);
}
static void do_pub(conn *c) {
  uint8_t b[32];
  int tl = strlen(c->topic);
  size_t rl = 2 + tl + (Q ? 2 : 0) + (V == 5 ? 1 : 0) + SZ;
  int k = 0;
  b[k++] = 0x30 | (Q << 1);
  k += vlen(b + k, rl);
  b[k++] = tl >> 8;
  b[k++] = tl & 255;
  put(c, b, k);
  put(c, c->topic, tl);
  k = 0;
  if (Q) {
    if (++c->pid == 0)
      c->pid = 1;
    b[k++] = c->pid >> 8;
    b[k++] = c->pid & 255;
  }
  if (V == 5)
    b[k++] = 0;
  uint64_t n = now();
  uint32_t who = c->idx, seq = c->sent;
  memcpy(b + k, &n, 8);
  memcpy(b + k + 8, &who, 4);
  memcpy(b + k + 12, &seq, 4);
  put(c, b, k + 16);
  need(&c->out, &c->oc, c->ol + SZ - 16);
  memset(c->out + c->ol, 'x', SZ - 16);
  c->ol += SZ - 16;
  c->sent++;
  published++;
}
static void ack(conn *c, int type, uint8_t *id) {
  uint8_t b[4] = {type, 2, id[0], id[1]};
  put(c, b, 4);
}
/* A v5 server may allow fewer unacknowledged PUBLISH packets than the window asks for. */
static void receive_maximum(conn *c, uint8_t *p) {
  size_t n = 0;
  int s = 0;
  do {
    n |= (size_t)(*p & 127) << s;
    s += 7;
  } while (*p++ & 128);
  uint8_t *end = p + n;
  while (p < end) {
    switch (*p++) {
    case 0x21: {
      int rm = p[0] << 8 | p[1];
      c->window = rm < W ? rm : W;
      p += 2;
      break;
    }
    case 0x11:
    case 0x27: p += 4; break;
    case 0x22:
    case 0x13: p += 2; break;
    case 0x24:
    case 0x25:
    case 0x28:
    case 0x29:
    case 0x2a: p += 1; break;
    case 0x26: p += 2 + (p[0] << 8 | p[1]); /* a pair: falls through to its value */
    default: p += 2 + (p[0] << 8 | p[1]);
    }
  }
}
static void packet(conn *c, uint8_t h, uint8_t *p, size_t n) {
  switch (h >> 4) {
  case 2:
    if (p[1]) {
      fprintf(stderr, "connack %d\n", p[1]);
      exit(4);
    }
    c->window = W;
    if (V == 5)
      receive_maximum(c, p + 2);
    if (c->role == 2 || (c->role == 3 && subscribes)) {
      do_sub(c);
    } else {
      c->state = 2;
      ready++;
    }
    break;
  case 9:
    if (p[n - 1] > 2) {
      fprintf(stderr, "subscription refused: %d\n", p[n - 1]);
      exit(4);
    }
    if (c->noise_sent <= noise) {
      do_sub(c);
    } else {
      c->state = 2;
      ready++;
    }
    break;
  case 3: {
    size_t o = 2 + ((p[0] << 8) | p[1]);
    int q = (h >> 1) & 3;
    uint8_t *id = p + o;
    if (q)
      o += 2;
    if (V == 5) {
      int s = 0;
      size_t pl = 0;
      do {
        pl |= (size_t)(p[o] & 127) << s;
        s += 7;
      } while (p[o++] & 128);
      o += pl;
    }
    uint64_t t;
    uint32_t who, seq;
    memcpy(&t, p + o, 8);
    memcpy(&who, p + o + 8, 4);
    memcpy(&seq, p + o + 12, 4);
    if (n - o != (size_t)SZ || who >= (uint32_t)P) {
      fprintf(stderr, "payload damaged\n");
      exit(8);
    }
    if (!share) {
      if (seq != c->next[who])
        reordered++;
      c->next[who] = seq + 1;
    }
    delivered++;
    if (measuring) {
      if (latn < latcap)
        lat[latn++] = now() - t;
    }
    if (q == 1)
      ack(c, 0x40, id);
    else if (q == 2)
      ack(c, 0x50, id);
    break;
  }
  case 4:
    c->acked++;
    puback_n++;
    break;
  case 5: ack(c, 0x62, p); break;
  case 6: ack(c, 0x70, p); break;
  case 7:
    c->acked++;
    puback_n++;
    break;
  case 13: break;
  case 14: fprintf(stderr, "server disconnect\n"); exit(5);
  default: break;
  }
}
static void readable(conn *c) {
  for (;;) {
    ssize_t k;
    if (websocket) {
      need(&c->raw, &c->rc, c->rl + 65536);
      k = receive(c, c->raw + c->rl, 65536);
    } else {
      need(&c->in, &c->ic, c->il + 65536);
      k = receive(c, c->in + c->il, 65536);
    }
    if (k == 0) {
      fprintf(stderr, "closed role %d state %d\n", c->role, c->state);
      exit(6);
    }
    if (k < 0) {
      if (errno == EAGAIN)
        break;
      perror("recv");
      exit(3);
    }
    if (websocket) {
      c->rl += k;
      unwrap(c);
    } else {
      c->il += k;
    }
    size_t o = 0;
    for (;;) {
      if (c->il - o < 2)
        break;
      size_t rl = 0;
      int s = 0;
      size_t i = o + 1;
      int ok = 0;
      while (i < c->il) {
        rl |= (size_t)(c->in[i] & 127) << s;
        s += 7;
        if (!(c->in[i++] & 128)) {
          ok = 1;
          break;
        }
      }
      if (!ok || c->il - i < rl)
        break;
      packet(c, c->in[o], c->in + i, rl);
      o = i + rl;
    }
    memmove(c->in, c->in + o, c->il - o);
    c->il -= o;
    if (k < 65536 && !tls) /* OpenSSL hands over a record at a time */
      break;
  }
  if (c->ol)
    flushc(c);
  if (c->role != 2 || c->il == 0) {
    if (idle && c->role == 3 && c->il == 0) {
      free(c->in);
      c->in = NULL;
      c->ic = 0;
      free(c->out);
      c->out = NULL;
      c->oc = c->ol = 0;
    }
  }
}
/* What comes before MQTT: a TLS handshake, a WebSocket upgrade. */
static int greet(conn *c) {
#ifdef TLS
  if (tls) {
    c->tls = SSL_new(tls_context);
    SSL_set_fd(c->tls, c->fd);
    if (SSL_connect(c->tls) != 1) {
      ERR_print_errors_fp(stderr);
      return -1;
    }
  }
#endif
  if (websocket) {
    char b[1024];
    int n = snprintf(b, sizeof b,
                     "GET /mqtt HTTP/1.1\r\nHost: %s:%d\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                     "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
                     "Sec-WebSocket-Protocol: mqtt\r\n\r\n",
                     host, port_of(c));
    if (transmit(c, b, n) != n)
      return -1;
    n = 0;
    while (n < 4 || memcmp(b + n - 4, "\r\n\r\n", 4)) {
      if (n >= (int)sizeof b - 1 || receive(c, b + n, 1) != 1)
        return -1;
      n++;
    }
    b[n] = 0;
    if (!strstr(b, " 101 ")) {
      fprintf(stderr, "no websocket: %s", b);
      return -1;
    }
  }
  return 0;
}
static int dial(conn *c) {
  int fd;
  if (unixpath) {
    fd = socket(AF_UNIX, SOCK_STREAM, 0);
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    strncpy(a.sun_path, unixpath, sizeof a.sun_path - 1);
    if (connect(fd, (void *)&a, sizeof a))
      return -1;
  } else {
    fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port_of(c))};
    if (idle) { /* spread source addresses so that >28k idle connections fit */
      struct sockaddr_in l = {.sin_family = AF_INET};
      char s[32];
      snprintf(s, 32, "127.0.0.%d", 2 + c->idx / 20000);
      inet_pton(AF_INET, s, &l.sin_addr);
      int one = 1;
      setsockopt(fd, IPPROTO_IP, 24, &one, sizeof one);
      bind(fd, (void *)&l, sizeof l);
    }
    inet_pton(AF_INET, host, &a.sin_addr);
    if (connect(fd, (void *)&a, sizeof a))
      return -1;
    int one = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  }
  c->fd = fd;
  if (greet(c))
    return -1;
  fcntl(fd, F_SETFL, O_NONBLOCK);
  struct epoll_event e = {.events = EPOLLIN, .data.ptr = c};
  epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e);
  do_connect(c);
  return 0;
}
static int cmp(const void *a, const void *b) {
  uint64_t x = *(uint64_t *)a, y = *(uint64_t *)b;
  return x < y ? -1 : x > y;
}
static void poll_once(int ms) {
  static struct epoll_event ev[512];
  int n = epoll_wait(ep, ev, 512, ms);
  for (int i = 0; i < n; i++) {
    conn *c = ev[i].data.ptr;
    if (ev[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR))
      readable(c);
    if (ev[i].events & EPOLLOUT)
      flushc(c);
  }
}
int main(int ac, char **av) {
  int o;
  while ((o = getopt(ac, av, "h:p:A:P:S:T:q:s:v:w:d:r:I:u:k:i:o:ngcbxtW:")) > 0)
    switch (o) {
    case 'h': host = optarg; break;
    case 'p': port = ports_of(optarg); break;
    case 'A': other_port = ports_of(optarg); break;
    case 'P': P = atoi(optarg); break;
    case 'S': S = atoi(optarg); break;
    case 'T': T = atoi(optarg); break;
    case 'q': Q = atoi(optarg); break;
    case 's': SZ = atoi(optarg); break;
    case 'v': V = atoi(optarg); break;
    case 'w': W = atoi(optarg); break;
    case 'd': D = atof(optarg); break;
    case 'r': R = atof(optarg); break;
    case 'k': noise = atoi(optarg); break;
    case 'i': interval = atof(optarg); break;
    case 'c': persist = 1; break;
    case 'I': idle = atoi(optarg); break;
    case 'u': unixpath = optarg; break;
    case 'o': prefix = optarg; break;
    case 'n': wild = 1; break;
    case 'g': share = 1; break;
    case 'b': subscribes = 1; break;
    case 'x': websocket = 1; break;
    case 't': tls = 1; break;
    case 'W': warm = atof(optarg); break;
    }
  struct rlimit rl = {1048576, 1048576};
  setrlimit(RLIMIT_NOFILE, &rl);
  if (SZ < 16)
    SZ = 16;
#ifdef TLS
  if (tls) {
    tls_context = SSL_CTX_new(TLS_client_method());
    SSL_CTX_set_mode(tls_context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  }
#else
  if (tls) {
    fprintf(stderr, "this mqload was built without TLS\n");
    return 2;
  }
#endif
  lat = malloc(latcap * 8);
  ep = epoll_create1(0);
  if (idle) {
    N = idle;
    cs = calloc(N, sizeof *cs);
    uint64_t t0 = now();
    for (int i = 0; i < N; i++) {
      cs[i].role = 3;
      cs[i].idx = i;
      if (dial(&cs[i])) {
        perror("connect");
        exit(2);
      }
      while (i + 1 - ready > batchconn)
        poll_once(100);
    }
    while (ready < N)
      poll_once(1000);
    double el = (now() - t0) / 1e9;
    printf("{\"idle\":%d,\"seconds\":%.2f,\"connects_per_s\":%.0f}\n", N, el, N / el);
    fflush(stdout);
    uint64_t end = now() + (uint64_t)(D * 1e9);
    while (now() < end)
      poll_once(100);
    return 0;
  }
  N = P + S;
  cs = calloc(N, sizeof *cs);
  for (int i = 0; i < N; i++) {
    cs[i].role = i < S ? 2 : 1;
    cs[i].idx = i < S ? i : i - S;
    cs[i].next = calloc(P, sizeof(uint32_t));
    snprintf(cs[i].topic, 64, "%s/%d/data", prefix, cs[i].idx % T);
    if (dial(&cs[i])) {
      perror("connect");
      exit(2);
    }
    while (i + 1 - ready > batchconn)
      poll_once(100);
  }
  uint64_t lim = now() + 30000000000ull;
  while (ready < N) {
    poll_once(1000);
    if (now() > lim) {
      fprintf(stderr, "not ready %d/%d\n", ready, N);
      exit(7);
    }
  }
  /* fan-out of each publisher's topic */
  int *fan = calloc(T, sizeof(int));
  for (int j = 0; j < S; j++)
    if (!wild)
      fan[j % T]++;
  if (wild)
    for (int t = 0; t < T; t++)
      fan[t] = S;
  if (share)
    for (int t = 0; t < T; t++)
      fan[t] = fan[t] > 0;
  uint64_t t0 = now(), tm = t0 + (uint64_t)(warm * 1e9), te = tm + (uint64_t)(D * 1e9);
  uint64_t d0 = 0, p0 = 0, ts = 0;
  uint64_t nextpub = t0;
  int rr = 0;
  uint64_t expect = 0, tick = tm;
  for (;;) {
    uint64_t n = now();
    if (interval > 0 && n >= tick) {
      printf("{\"at\":%.6f,\"received\":%llu}\n", (n - tm) / 1e9, (unsigned long long)delivered);
      fflush(stdout);
      tick += (uint64_t)(interval * 1e9);
      if (tick > te)
        tick = te;
    }
    if (!measuring && n >= tm) {
      measuring = 1;
      d0 = delivered;
      p0 = published;
      ts = n;
    }
    if (n >= te) {
      m_del = delivered - d0;
      m_pub = published - p0;
      te = n;
      break;
    }
    if (R > 0) {
      while (nextpub <= n) {
        conn *c = &cs[S + rr];
        rr = (rr + 1) % P;
        do_pub(c);
        expect += fan[c->idx % T];
        flushc(c);
        nextpub += (uint64_t)(1e9 / R);
      }
      uint64_t m = now();
      poll_once(nextpub > m + 1000000 ? (int)((nextpub - m) / 1000000) : 0);
    } else {
      for (int i = 0; i < P; i++) {
        conn *c = &cs[S + i];
        if (c->ol + c->wl > 262144)
          continue;
        int burst = 64;
        while (burst-- && (Q == 0 ? 1 : (int64_t)(c->sent - c->acked) < c->window) &&
               (int64_t)(expect - delivered) < (int64_t)W * P * (fan[c->idx % T] ? fan[c->idx % T] : 1)) {
          do_pub(c);
          expect += fan[c->idx % T];
        }
        if (c->ol)
          flushc(c);
      }
      poll_once(1);
    }
  }
  double el = (te - ts) / 1e9;
  uint64_t drain = now() + 3000000000ull;
  measuring = 0;
  while ((delivered < expect || (Q && puback_n < published)) && now() < drain)
    poll_once(100);
  qsort(lat, latn, 8, cmp);
  printf("{\"P\":%d,\"S\":%d,\"T\":%d,\"qos\":%d,\"size\":%d,\"v\":%d,\"window\":%d,\"rate\":%.0f,\"pub_per_"
         "s\":%.0f,\"recv_per_s\":%.0f,\"p50_us\":%.0f,\"p99_us\":%.0f,\"p999_us\":%.0f,\"max_us\":%.0f,"
         "\"lost\":%lld,\"reordered\":%llu,\"published\":%llu,\"delivered\":%llu}\n",
         P, S, T, Q, SZ, V, W, R, m_pub / el, m_del / el, latn ? lat[latn / 2] / 1e3 : 0,
         latn ? lat[latn * 99 / 100] / 1e3 : 0, latn ? lat[latn * 999 / 1000] / 1e3 : 0,
         latn ? lat[latn - 1] / 1e3 : 0, (long long)(expect - delivered), (unsigned long long)reordered, (unsigned long long)published,
         (unsigned long long)delivered);
  return 0;
}
