// SPDX-License-Identifier: Apache-2.0

package contract

import (
	"fmt"
	"time"

	"golang.org/x/sys/windows"
	"golang.org/x/sys/windows/registry"
	"golang.org/x/sys/windows/svc"
	"golang.org/x/sys/windows/svc/mgr"

	"github.com/tandem-proxy/tandem/windows/hns/dll"
)

// Local returns the HNS of this machine, and its service.
func Local() (HNS, Service, error) {
	d := dll.Local()
	if err := d.Load(); err != nil {
		return nil, nil, fmt.Errorf("this Windows has no HNS: %w", err)
	}
	return d, service("hns"), nil
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

// change brings the service into a state, and waits for it.
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
