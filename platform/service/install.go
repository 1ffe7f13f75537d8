// SPDX-License-Identifier: Apache-2.0

package service

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/kardianos/service"
)

// Install makes the running program a service that starts with the system. It
// does not start it. A service of our name that is there already is an error,
// and not changed.
func Install(spec Spec) error {
	if err := checkPrivileges(); err != nil {
		return explain("install", err)
	}
	path, err := executable()
	if err != nil {
		return err
	}
	if err := checkPermissions(path); err != nil {
		return err
	}
	s, err := open(Spec{Arguments: arguments(spec.Arguments), Unit: spec.Unit, OpenRC: spec.OpenRC}, path)
	if err != nil {
		return err
	}
	state, err := status(s)
	if err != nil {
		return err
	}
	if state != Absent {
		return fmt.Errorf("service %s is installed already and %s: tandem stop and tandem start run a new version of the program; for other flags, tandem uninstall first", Name, state)
	}
	if err := CreateFolders(); err != nil {
		return err
	}
	if err := s.Install(); err != nil {
		return errors.Join(explain("install", err), removeUnit("/", s.Platform()))
	}
	if err := setServiceOptions(); err != nil {
		return errors.Join(explain("install", err), s.Uninstall())
	}
	return nil
}

// Uninstall stops the service and removes it. Programmed objects stay:
// see `tandem cleanup`.
func Uninstall() error {
	return with("uninstall", func(s service.Service, state State) error {
		if err := checkRemovable(); err != nil {
			return err
		}
		if state == Running {
			if err := s.Stop(); err != nil {
				return err
			}
		}
		return s.Uninstall()
	})
}

// Start starts the service; one that runs is no error.
func Start() error { return bring("start", Running, service.Service.Start) }

// Stop stops the service; one that is stopped is no error.
func Stop() error { return bring("stop", Stopped, service.Service.Stop) }

// bring brings the service into a state, unless it is in that.
func bring(what string, to State, do func(service.Service) error) error {
	return with(what, func(s service.Service, state State) error {
		if state == to {
			return nil
		}
		return do(s)
	})
}

// Status returns the state of the service.
func Status() (State, error) {
	s, err := open(Spec{}, "")
	if err != nil {
		return Absent, err
	}
	return status(s)
}

// with calls f with the installed service.
func with(what string, f func(service.Service, State) error) error {
	if err := checkPrivileges(); err != nil {
		return explain(what, err)
	}
	s, err := open(Spec{}, "")
	if err != nil {
		return err
	}
	state, err := status(s)
	if err == nil && state == Absent {
		err = fmt.Errorf("not installed: run tandem install")
	}
	if err == nil {
		err = f(s, state)
	}
	return explain(what, err)
}

func explain(what string, err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, os.ErrPermission) {
		return fmt.Errorf("%s service %s: %w: run as root or administrator", what, Name, err)
	}
	return fmt.Errorf("%s service %s: %w", what, Name, err)
}

func open(spec Spec, path string) (service.Service, error) {
	config := service.Config{
		Name: Name, DisplayName: "Tandem service proxy", Description: "Programs Kubernetes Services on this node.",
		Executable: path, Arguments: spec.Arguments, Option: service.KeyValue{"DelayedAutoStart": false},
	}
	if spec.Unit != nil {
		config.Option["SystemdScript"] = spec.Unit(path)
	}
	if spec.OpenRC != nil {
		config.Option["OpenRCScript"] = spec.OpenRC(path)
	}
	if err := managerKnown(service.Platform()); err != nil {
		return nil, err
	}
	s, err := service.New(notRun{}, &config)
	if err != nil {
		return nil, fmt.Errorf("service %s: %w: no supported service manager on this system", Name, err)
	}
	return s, nil
}

// managerKnown returns an error unless there is a service manager for which Tandem brings
// a definition. kardianos/service takes System V's for the last resort.
func managerKnown(manager string) error {
	switch manager {
	case "linux-systemd", "linux-openrc", "windows-service":
		return nil
	}
	return fmt.Errorf("service %s: neither systemd nor OpenRC runs this system, only %q was found: have its service manager run 'tandem run', or use a container image", Name, manager)
}

func status(s service.Service) (State, error) {
	state, err := s.Status()
	return stateOf(state, err, installedUnit())
}

// stateOf is the state that kardianos/service reports; unit is a file that defines the service, if there is one. It
// takes states between others for that of no service, such as systemd's "deactivating": to install
// another one then would replace a unit, and remove it again where that failed.
func stateOf(state service.Status, err error, unit string) (State, error) {
	switch {
	case errors.Is(err, service.ErrNotInstalled) && unit != "":
		return Absent, explain("query", fmt.Errorf("%s is there, and the service neither runs nor is stopped: try again when it has stopped", unit))
	case errors.Is(err, service.ErrNotInstalled):
		return Absent, nil
	case err != nil && strings.HasSuffix(err.Error(), "in failed state"): // from systemd
		return Stopped, nil
	case err != nil:
		return Absent, explain("query", err)
	case state == service.StatusRunning:
		return Running, nil
	}
	return Stopped, nil
}

// notRun replaces the program, which kardianos/service installs and never runs:
// Serve and systemd do.
type notRun struct{}

var errNotRun = errors.New("the installer does not run the service")

func (notRun) Start(service.Service) error { return errNotRun }
func (notRun) Stop(service.Service) error  { return errNotRun }

// executable returns the path of the running program, with links resolved: the
// service refers to it for years.
func executable() (string, error) {
	path, err := os.Executable()
	if err == nil {
		path, err = filepath.EvalSymlinks(path)
	}
	if err != nil {
		return "", fmt.Errorf("path of this program: %w", err)
	}
	return path, nil
}
