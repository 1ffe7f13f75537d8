// SPDX-License-Identifier: Apache-2.0

package dll

import (
	"errors"
	"strings"
	"unsafe"

	"golang.org/x/sys/windows"
)

// DLLs are computenetwork.dll and, for the old API, vmcompute.dll of this machine.
type DLLs struct{ network, old *windows.LazyDLL }

// Local returns the DLLs of this machine, which are loaded at the first call.
func Local() DLLs {
	return DLLs{windows.NewLazySystemDLL("computenetwork.dll"), windows.NewLazySystemDLL("vmcompute.dll")}
}

// Load loads both.
func (d DLLs) Load() error { return errors.Join(d.network.Load(), d.old.Load()) }

// The results that Do makes up, as HRESULTs of Win32 errors.
const (
	missing = 0x8007007f // ERROR_PROC_NOT_FOUND: the DLL does not have the function
	invalid = 0x80070057 // ERROR_INVALID_PARAMETER
)

// Do makes a call. Pointers become uintptr in the argument lists of Call, as package unsafe
// demands: so their targets stay in place.
func (d DLLs) Do(r Request) Response {
	if r.Verb == Rest {
		return d.rest(r.Text)
	}
	p := d.network.NewProc(r.Function())
	if p.Find() != nil {
		return Response{Result: missing}
	}
	text, err := windows.UTF16PtrFromString(r.Text)
	if err != nil {
		return Response{Result: invalid}
	}
	var id windows.GUID // zero, as hcsshim has it: HNS or the settings choose one
	if r.ID != "" {
		if id, err = windows.GUIDFromString("{" + r.ID + "}"); err != nil {
			return Response{Result: invalid}
		}
	}
	var out struct {
		handle       uintptr
		text, record *uint16
	}
	handle, answer, record := unsafe.Pointer(&out.handle), unsafe.Pointer(&out.text), unsafe.Pointer(&out.record)
	var hr uintptr
	switch r.Verb {
	case Enumerate:
		hr, _, _ = p.Call(uintptr(unsafe.Pointer(text)), uintptr(answer), uintptr(record))
	case Open:
		hr, _, _ = p.Call(uintptr(unsafe.Pointer(&id)), uintptr(handle), uintptr(record))
	case Create:
		if r.Kind == Endpoint {
			hr, _, _ = p.Call(uintptr(r.Handle), uintptr(unsafe.Pointer(&id)), uintptr(unsafe.Pointer(text)), uintptr(handle), uintptr(record))
		} else {
			hr, _, _ = p.Call(uintptr(unsafe.Pointer(&id)), uintptr(unsafe.Pointer(text)), uintptr(handle), uintptr(record))
		}
	case Modify:
		hr, _, _ = p.Call(uintptr(r.Handle), uintptr(unsafe.Pointer(text)), uintptr(record))
	case Query:
		hr, _, _ = p.Call(uintptr(r.Handle), uintptr(unsafe.Pointer(text)), uintptr(answer), uintptr(record))
	case Delete:
		hr, _, _ = p.Call(uintptr(unsafe.Pointer(&id)), uintptr(record))
	case Close:
		hr, _, _ = p.Call(uintptr(r.Handle))
	}
	return Response{Result: uint32(hr), Handle: uint64(out.handle), Text: taken(out.text), Record: taken(out.record)}
}

// rest calls the old API.
func (d DLLs) rest(request string) Response {
	head, body, _ := strings.Cut(request, "\n")
	method, path, _ := strings.Cut(head, " ")
	p := d.old.NewProc("HNSCall")
	m, err := windows.UTF16PtrFromString(method)
	where, err2 := windows.UTF16PtrFromString(path)
	what, err3 := windows.UTF16PtrFromString(body)
	if errors.Join(err, err2, err3, p.Find()) != nil {
		return Response{Result: missing}
	}
	var out struct{ text *uint16 }
	hr, _, _ := p.Call(uintptr(unsafe.Pointer(m)), uintptr(unsafe.Pointer(where)), uintptr(unsafe.Pointer(what)), uintptr(unsafe.Pointer(&out.text)))
	return Response{Result: uint32(hr), Text: taken(out.text)}
}

// taken copies a string that HNS has allocated, and frees it.
func taken(s *uint16) string {
	if s == nil {
		return ""
	}
	defer windows.CoTaskMemFree(unsafe.Pointer(s))
	return windows.UTF16PtrToString(s)
}
