// vmcompute.dll for tests: the one function of the HNS v1 API that is needed,
// the version.
#include "forward.h"

__declspec(dllexport) HRESULT WINAPI HNSCall(PCWSTR method, PCWSTR path, PCWSTR body, PWSTR *answer) {
	return rpc(0, 7, 0, 0, path, 0, 0, answer, 0);
}
