// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"
	"unsafe"

	"golang.org/x/sys/windows"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/windows/folders"
)

func onWindows(m dataplane.Mode) dataplane.Mode {
	m.Probe, m.Await, m.Open, m.Remove = probe, awaitNetwork, openBackend, remove
	return m
}

func probe(ctx context.Context) error {
	h := newHCN()
	defer h.Close()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return Probe(ctx, h, Settings{Log: slog.Default(), Instance: serviceInstance})
}

// awaitNetwork waits for the network of the pods, at most for patience. The error lists
// the networks that HNS has.
func awaitNetwork(ctx context.Context, c *config.Config) error {
	h, s, err := Local()
	if err != nil {
		return err
	}
	defer h.Close()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	_, _, _, err = find(ctx, h, c, s)
	return err
}

func openBackend(ctx context.Context, c *config.Config, log *slog.Logger) (dataplane.Backend, error) {
	h, s, err := local(log)
	if err != nil {
		return nil, err
	}
	_, waits := ctx.Deadline()
	s.Once = !waits
	return Open(ctx, RecordIn(c.Windows.Record, h, log), c, s)
}

func remove(ctx context.Context, _ *config.Config) error {
	h, s, err := Local()
	if err != nil {
		return err
	}
	return Remove(ctx, h, s)
}

// Local returns the HNS of this machine and its settings. The caller
// closes it.
func Local() (HNS, Settings, error) { return local(slog.Default()) }

func local(log *slog.Logger) (HNS, Settings, error) {
	at, err := folders.Find()
	closed := func(dir string, files ...string) error { return closedFolder(log, dir, files...) }
	return newHCN(), Settings{
		Journal: filepath.Join(at.State, "hns.journal"), Folder: closed, Log: log, MAC: interfaceMAC, Instance: serviceInstance,
		Pause:         time.Second,
		SourceVIPFile: `c:\sourcevip\sourceVip.json`, Network: os.Getenv("KUBE_NETWORK"), // as kube-proxy
	}, err
}

// closedFolder is Settings.Folder. A HostProcess pod may find the folder as a service has
// left it, or as created by any user.
func closedFolder(log *slog.Logger, dir string, files ...string) error {
	if err := folders.Close(filepath.Dir(dir), dir); err != nil {
		return err
	}
	for _, f := range files {
		deleted, err := folders.DeleteUntrusted(f)
		if err != nil {
			return err
		}
		if deleted {
			log.Warn("deleted untrusted journal: owned by neither the system nor administrators", "file", f)
		}
	}
	return nil
}

// serviceInstance returns the id of the process of the service hns, which other services may
// share; 0 unless it runs. It asks the service manager, not HNS. The error wraps
// dataplane.ErrAbsent if there is no such service.
func serviceInstance() (uint32, error) {
	m, err := windows.OpenSCManager(nil, nil, windows.SC_MANAGER_CONNECT)
	if err != nil {
		return 0, err
	}
	defer windows.CloseServiceHandle(m)
	name, err := windows.UTF16PtrFromString("hns")
	if err != nil {
		return 0, err
	}
	s, err := windows.OpenService(m, name, windows.SERVICE_QUERY_STATUS)
	if errors.Is(err, windows.ERROR_SERVICE_DOES_NOT_EXIST) {
		return 0, fmt.Errorf("the service hns %w: %w", dataplane.ErrAbsent, err)
	}
	if err != nil {
		return 0, err
	}
	defer windows.CloseServiceHandle(s)
	var status windows.SERVICE_STATUS_PROCESS
	var need uint32
	err = windows.QueryServiceStatusEx(s, windows.SC_STATUS_PROCESS_INFO, (*byte)(unsafe.Pointer(&status)), uint32(unsafe.Sizeof(status)), &need)
	if status.CurrentState != windows.SERVICE_RUNNING {
		return 0, err
	}
	return status.ProcessId, err
}
