// Forwards calls of HNS to the emulator (windows/test/hnsemu/wire.go says how).
// One connection for each thread that calls; no JSON is looked at here.
#define WIN32_LEAN_AND_MEAN
#include <winsock2.h>
#include <ws2tcpip.h>
#include <windows.h>
#include <objbase.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define NO_SERVER ((HRESULT)0x800706BA) // what the client sees when HNS is not there

// address reads HNSEMU_ADDR ("127.0.0.1:port"), else the registry: services get
// no environment of their own.
static int address(char *buf, DWORD n) {
	DWORD got = GetEnvironmentVariableA("HNSEMU_ADDR", buf, n);
	if (got > 0 && got < n) return 1;
	return RegGetValueA(HKEY_LOCAL_MACHINE, "SOFTWARE\\HnsEmu", "Addr", RRF_RT_REG_SZ, 0, buf, &n) == ERROR_SUCCESS;
}

static SOCKET dial(void) {
	char addr[64], *colon;
	WSADATA wsa;
	BOOL on = TRUE;
	if (WSAStartup(MAKEWORD(2, 2), &wsa) || !address(addr, sizeof addr) || !(colon = strrchr(addr, ':'))) return INVALID_SOCKET;
	*colon = 0;
	struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((u_short)atoi(colon + 1))};
	to.sin_addr.s_addr = inet_addr(addr);
	SOCKET s = socket(AF_INET, SOCK_STREAM, 0);
	if (s == INVALID_SOCKET) return s;
	setsockopt(s, IPPROTO_TCP, TCP_NODELAY, (char *)&on, sizeof on);
	if (connect(s, (struct sockaddr *)&to, sizeof to)) {
		closesocket(s);
		return INVALID_SOCKET;
	}
	return s;
}

// Idle connections. A caller takes one, or dials, and puts it back.
static SRWLOCK lock = SRWLOCK_INIT;
static SOCKET idle[64];
static int idles;

static SOCKET take(void) {
	SOCKET s = INVALID_SOCKET;
	AcquireSRWLockExclusive(&lock);
	if (idles > 0) s = idle[--idles];
	ReleaseSRWLockExclusive(&lock);
	return s == INVALID_SOCKET ? dial() : s;
}

static void put(SOCKET s) {
	AcquireSRWLockExclusive(&lock);
	if (idles < 64) {
		idle[idles++] = s;
		s = INVALID_SOCKET;
	}
	ReleaseSRWLockExclusive(&lock);
	if (s != INVALID_SOCKET) closesocket(s);
}

static int transfer(SOCKET s, char *p, uint32_t n, int write) {
	while (n > 0) {
		int k = write ? send(s, p, n, 0) : recv(s, p, n, 0);
		if (k <= 0) return 0;
		p += k;
		n -= k;
	}
	return 1;
}

// string makes the caller's copy of a string in a response.
static PWSTR string(const char **p) {
	uint32_t n;
	memcpy(&n, *p, 4);
	PWSTR w = CoTaskMemAlloc(n + 2);
	if (w) {
		memcpy(w, *p + 4, n);
		w[n / 2] = 0;
	}
	*p += 4 + n;
	return w;
}

// rpc makes one call. A call whose answer is lost is not made again.
static HRESULT rpc(uint8_t kind, uint8_t verb, uint64_t handle, const GUID *id, PCWSTR text,
                   uint64_t *handleOut, GUID *idOut, PWSTR *textOut, PWSTR *record) {
	if (textOut) *textOut = NULL;
	if (record) *record = NULL;
	uint32_t n = text ? (uint32_t)wcslen(text) * 2 : 0, size = 2 + 8 + 16 + 4 + n;
	char *m = calloc(1, 4 + size);
	if (!m) return E_OUTOFMEMORY;
	memcpy(m, &size, 4);
	m[4] = kind;
	m[5] = verb;
	memcpy(m + 6, &handle, 8);
	if (id) memcpy(m + 14, id, 16);
	memcpy(m + 30, &n, 4);
	if (n) memcpy(m + 34, text, n);
	SOCKET s = take();
	int ok = s != INVALID_SOCKET && transfer(s, m, 4 + size, 1) && transfer(s, (char *)&size, 4, 0);
	free(m);
	m = ok ? malloc(size) : NULL;
	if (!m || !transfer(s, m, size, 0)) {
		if (s != INVALID_SOCKET) closesocket(s);
		free(m);
		return NO_SERVER;
	}
	put(s);
	HRESULT hr;
	const char *p = m + 28;
	memcpy(&hr, m, 4);
	if (handleOut) memcpy(handleOut, m + 4, 8);
	if (idOut && SUCCEEDED(hr)) memcpy(idOut, m + 12, 16);
	PWSTR t = string(&p), r = string(&p);
	if (textOut && SUCCEEDED(hr)) *textOut = t; else CoTaskMemFree(t);
	if (record && FAILED(hr)) *record = r; else CoTaskMemFree(r);
	free(m);
	return hr;
}
