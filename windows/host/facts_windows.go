// SPDX-License-Identifier: Apache-2.0

package host

import (
	"fmt"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/windows"

	"github.com/tandem-proxy/tandem/core/diagnosis"
)

// Facts reads the facts for the checks of tandem doctor. Facts that cannot be read are left
// out.
func Facts() *diagnosis.Facts {
	v := windows.RtlGetVersion()
	return &diagnosis.Facts{
		System: "windows", Kernel: fmt.Sprintf("%d.%d.%d", v.MajorVersion, v.MinorVersion, v.BuildNumber),
		Interfaces: interfaces(), Processes: processes(), Services: services("hns", "vfpext", "w32time"),
	}
}

// interfaces lists the interfaces that are up.
func interfaces() (all []diagnosis.Interface) {
	size := uint32(64 << 10)
	for range 3 { // more may appear between two calls
		buf := make([]byte, size)
		first := (*windows.IpAdapterAddresses)(unsafe.Pointer(&buf[0]))
		err := windows.GetAdaptersAddresses(windows.AF_UNSPEC, windows.GAA_FLAG_INCLUDE_GATEWAYS, 0, first, &size)
		if err == windows.ERROR_BUFFER_OVERFLOW {
			continue
		}
		if err != nil {
			return nil
		}
		for a := first; a != nil; a = a.Next {
			if a.OperStatus == windows.IfOperStatusUp {
				all = append(all, diagnosis.Interface{Name: windows.UTF16PtrToString(a.FriendlyName), MTU: int(int32(a.Mtu)), Uplink: a.FirstGatewayAddress != nil})
			}
		}
		return all
	}
	return nil
}

// processes returns the process ids by program name, in lower case.
func processes() map[string][]string {
	list, err := windows.CreateToolhelp32Snapshot(windows.TH32CS_SNAPPROCESS, 0)
	if err != nil {
		return nil
	}
	defer windows.CloseHandle(list)
	all := map[string][]string{}
	e := windows.ProcessEntry32{}
	e.Size = uint32(unsafe.Sizeof(e))
	for err = windows.Process32First(list, &e); err == nil; err = windows.Process32Next(list, &e) {
		name := strings.ToLower(windows.UTF16ToString(e.ExeFile[:]))
		all[name] = append(all[name], strconv.Itoa(int(e.ProcessID)))
	}
	return all
}

// services returns the states of installed services; nil if the service manager cannot be
// opened.
func services(names ...string) map[string]string {
	manager, err := windows.OpenSCManager(nil, nil, windows.SC_MANAGER_CONNECT)
	if err != nil {
		return nil
	}
	defer windows.CloseServiceHandle(manager)
	all := map[string]string{}
	for _, name := range names {
		text, err := windows.UTF16PtrFromString(name)
		if err != nil {
			continue
		}
		s, err := windows.OpenService(manager, text, windows.SERVICE_QUERY_STATUS)
		if err != nil {
			continue // not installed
		}
		var status windows.SERVICE_STATUS
		if windows.QueryServiceStatus(s, &status) == nil {
			all[name] = stateName(status.CurrentState)
		}
		windows.CloseServiceHandle(s)
	}
	return all
}

func stateName(state uint32) string {
	switch state {
	case windows.SERVICE_RUNNING:
		return "running"
	case windows.SERVICE_STOPPED:
		return "stopped"
	case windows.SERVICE_START_PENDING:
		return "starting"
	}
	return "not running"
}
