// SPDX-License-Identifier: Apache-2.0

package contract

import (
	"errors"
	"fmt"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/windows"
	"golang.org/x/sys/windows/registry"
	"golang.org/x/sys/windows/svc"
	"golang.org/x/sys/windows/svc/mgr"
)

// functions are those of this machine's DLLs.
type functions struct{ network, old *windows.LazyDLL }

// Local returns the HNS of this machine, and its service.
func Local() (HNS, Service, error) {
	f := functions{windows.NewLazySystemDLL("computenetwork.dll"), windows.NewLazySystemDLL("vmcompute.dll")}
	if err := errors.Join(f.network.Load(), f.old.Load()); err != nil {
		return nil, nil, fmt.Errorf("this Windows has no HNS: %w", err)
	}
	return f, service("hns"), nil
}

// missing is the result of a function that the DLL does not have.
const missing = 0x8007007f // ERROR_PROC_NOT_FOUND

// Do implements HNS. The arguments are made in the calls themselves, which keeps what
// they point to from being moved.
func (f functions) Do(r Request) Response {
	if r.Verb == Rest {
		return f.rest(r.Text)
	}
	p := f.network.NewProc(r.Function())
	if p.Find() != nil {
		return Response{Result: missing}
	}
	text, err := windows.UTF16PtrFromString(r.Text)
	if err != nil {
		return Response{Result: 0x80070057} // ERROR_INVALID_PARAMETER
	}
	var id windows.GUID // zero, as of hcsshim: HNS or the settings choose one
	if r.ID != "" {
		if id, err = windows.GUIDFromString("{" + r.ID + "}"); err != nil {
			return Response{Result: 0x80070057}
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
func (f functions) rest(request string) Response {
	head, body, _ := strings.Cut(request, "\n")
	method, path, _ := strings.Cut(head, " ")
	p := f.old.NewProc("HNSCall")
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

// taken returns a string that HNS has allocated, and frees it.
func taken(s *uint16) string {
	if s == nil {
		return ""
	}
	defer windows.CoTaskMemFree(unsafe.Pointer(s))
	return windows.UTF16PtrToString(s)
}

// Windows returns the version of this Windows, with that of its last update where it is
// known: "10.0.20348.2527".
func Windows() string {
	v := windows.RtlGetVersion()
	text := fmt.Sprintf("%d.%d.%d", v.MajorVersion, v.MinorVersion, v.BuildNumber)
	k, err := registry.OpenKey(registry.LOCAL_MACHINE, `SOFTWARE\Microsoft\Windows NT\CurrentVersion`, registry.QUERY_VALUE)
	if err != nil {
		return text
	}
	defer k.Close()
	if update, _, err := k.GetIntegerValue("UBR"); err == nil {
		text += fmt.Sprintf(".%d", update)
	}
	return text
}

// service is a service of Windows, by its name.
type service string

// settling is how long a service may take to stop or to start.
const settling = time.Minute

func (s service) Stop() error {
	return s.change(svc.Stopped, func(x *mgr.Service) error { _, err := x.Control(svc.Stop); return err })
}

func (s service) Start() error {
	return s.change(svc.Running, func(x *mgr.Service) error { return x.Start() })
}

// change brings the service into a state.
func (s service) change(to svc.State, how func(*mgr.Service) error) error {
	m, err := mgr.Connect()
	if err != nil {
		return err
	}
	defer m.Disconnect()
	x, err := m.OpenService(string(s))
	if err != nil {
		return err
	}
	defer x.Close()
	for deadline, asked := time.Now().Add(settling), false; ; time.Sleep(100 * time.Millisecond) {
		status, err := x.Query()
		switch {
		case err != nil:
			return err
		case status.State == to:
			return nil
		case time.Now().After(deadline):
			return fmt.Errorf("service %s is in state %d after %s", string(s), status.State, settling)
		case !asked:
			if err := how(x); err != nil {
				return err
			}
			asked = true
		}
	}
}
