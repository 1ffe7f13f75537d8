// vmcompute.dll for tests: the one function of the HNS v1 API.
#include "forward.h"

__declspec(dllexport) HRESULT WINAPI HNSCall(PCWSTR method, PCWSTR path, PCWSTR body, PWSTR *answer) {
	size_t n = wcslen(method) + 1 + wcslen(path) + 1 + (body ? wcslen(body) : 0) + 1;
	PWSTR text = calloc(n, sizeof *text);
	if (!text) return E_OUTOFMEMORY;
	wcscpy(text, method);
	wcscat(text, L" ");
	wcscat(text, path);
	wcscat(text, L"\n");
	if (body) wcscat(text, body);
	HRESULT hr = rpc(0, 7, 0, 0, text, 0, 0, answer, 0);
	free(text);
	return hr;
}
