// computenetwork.dll for tests: the HCN API, forwarded to the emulator.
#include "forward.h"

// rule: functions
#define API __declspec(dllexport) HRESULT WINAPI

enum { ENUMERATE, CREATE, OPEN, MODIFY, QUERY, DELETE_, CLOSE };

// What all kinds of objects have. A network's handle makes creating an endpoint
// another function.
#define FAMILY(kind, Name) \
	API HcnEnumerate##Name##s(PCWSTR query, PWSTR *ids, PWSTR *err) { return rpc(kind, ENUMERATE, 0, 0, query, 0, 0, ids, err); } \
	API HcnOpen##Name(const GUID *id, uint64_t *h, PWSTR *err) { return rpc(kind, OPEN, 0, id, 0, h, 0, 0, err); } \
	API HcnModify##Name(uint64_t h, PCWSTR to, PWSTR *err) { return rpc(kind, MODIFY, h, 0, to, 0, 0, 0, err); } \
	API HcnQuery##Name##Properties(uint64_t h, PCWSTR query, PWSTR *props, PWSTR *err) { return rpc(kind, QUERY, h, 0, query, 0, 0, props, err); } \
	API HcnDelete##Name(const GUID *id, PWSTR *err) { return rpc(kind, DELETE_, 0, id, 0, 0, 0, 0, err); } \
	API HcnClose##Name(uint64_t h) { return rpc(kind, CLOSE, h, 0, 0, 0, 0, 0, 0); }

#define CREATES(kind, Name) \
	API HcnCreate##Name(GUID *id, PCWSTR settings, uint64_t *h, PWSTR *err) { return rpc(kind, CREATE, 0, 0, settings, h, 0, 0, err); }

FAMILY(1, Network)
CREATES(1, Network)
FAMILY(2, Endpoint)
API HcnCreateEndpoint(uint64_t network, GUID *id, PCWSTR settings, uint64_t *h, PWSTR *err) {
	return rpc(2, CREATE, network, 0, settings, h, 0, 0, err);
}
FAMILY(3, Namespace)
CREATES(3, Namespace)
FAMILY(4, LoadBalancer)
CREATES(4, LoadBalancer)
FAMILY(5, SdnRoute)
CREATES(5, SdnRoute)
