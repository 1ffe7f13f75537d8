// Package service makes tandem a service of the system and back again: a systemd
// unit on Linux, a service of the service manager on Windows. It is written and
// taken away through kardianos/service.
//
//	tandem install ──▶ Install ──▶ unit file, or service + recovery + event source
//	service manager ─▶ tandem run ... --windows-service ──▶ Serve ──▶ Program
//	                                                          │
//	                  %ProgramData%\Tandem\logs, Event Log ◀───┘
//
// Under systemd the program runs as it does by hand. Windows wants to be talked
// to: Serve does, in a way that tells how far a start or stop has come, gives
// other failures than crashes to the recovery actions, and says where it hangs.
package service

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/kardianos/service"
)

// Name is the service's name, on every system.
const Name = "tandem"

// Spec is what is installed.
type Spec struct {
	Arguments []string // of the program, "run" first
	// Unit returns the systemd unit for the program at a path. Nil stands for a
	// plain one.
	Unit func(program string) string
}

// Program is what a service does.
type Program struct {
	// Work runs until ctx ends. It says when it is ready, and writes its log to
	// a place of the service.
	Work func(ctx context.Context, log io.Writer, ready func()) error
	// Code is the exit code for an error that Work returned.
	Code func(error) int
}

// State is what the system says of the service.
type State string

// The states.
const (
	Absent  State = "not installed"
	Stopped State = "stopped"
	Running State = "running"
)

// Install makes the running program a service that starts with the system. It
// does not start it. A service of our name that is there already is an error,
// and left as it is.
func Install(spec Spec) error {
	if err := privileged(); err != nil {
		return explain("install", err)
	}
	path, err := executable()
	if err != nil {
		return err
	}
	if err := guarded(path); err != nil {
		return err
	}
	s, err := open(Spec{Arguments: arguments(spec.Arguments), Unit: spec.Unit}, path)
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
	if err := prepare(); err != nil {
		return err
	}
	if err := s.Install(); err != nil {
		return errors.Join(explain("install", err), undo())
	}
	if err := refine(); err != nil {
		return errors.Join(explain("install", err), s.Uninstall())
	}
	return nil
}

// Uninstall stops the service and takes it away. What it has programmed stays:
// see `tandem cleanup`.
func Uninstall() error {
	return with("uninstall", func(s service.Service, state State) error {
		if err := removable(); err != nil {
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
func Start() error {
	return with("start", func(s service.Service, state State) error {
		if state == Running {
			return nil
		}
		return s.Start()
	})
}

// Stop stops the service; one that is stopped is no error.
func Stop() error {
	return with("stop", func(s service.Service, state State) error {
		if state == Stopped {
			return nil
		}
		return s.Stop()
	})
}

// Status tells the service's state.
func Status() (State, error) {
	s, err := open(Spec{}, "")
	if err != nil {
		return Absent, err
	}
	return status(s)
}

// with does something with the service that is installed.
func with(what string, f func(service.Service, State) error) error {
	if err := privileged(); err != nil {
		return explain(what, err)
	}
	s, err := open(Spec{}, "")
	if err != nil {
		return err
	}
	state, err := status(s)
	if err == nil && state == Absent {
		err = fmt.Errorf("it is not installed: tandem install does that")
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
		return fmt.Errorf("%s service %s: %w: run it as root or as an administrator", what, Name, err)
	}
	return fmt.Errorf("%s service %s: %w", what, Name, err)
}

func open(spec Spec, path string) (service.Service, error) {
	config := service.Config{
		Name: Name, DisplayName: "Tandem service proxy", Description: "Makes Kubernetes Services work on this node.",
		Executable: path, Arguments: spec.Arguments, Option: service.KeyValue{"DelayedAutoStart": false},
	}
	if spec.Unit != nil {
		config.Option["SystemdScript"] = spec.Unit(path)
	}
	s, err := service.New(elsewhere{}, &config)
	if err != nil {
		return nil, fmt.Errorf("service %s: %w: this system has no service manager that is known", Name, err)
	}
	return s, nil
}

func status(s service.Service) (State, error) {
	state, err := s.Status()
	switch {
	case errors.Is(err, service.ErrNotInstalled):
		return Absent, nil
	case err != nil && strings.HasSuffix(err.Error(), "in failed state"): // systemd's: it ended with an error
		return Stopped, nil
	case err != nil:
		return Absent, explain("look at", err)
	case state == service.StatusRunning:
		return Running, nil
	}
	return Stopped, nil
}

// elsewhere stands for the program, which kardianos/service installs and never
// runs: that is Serve's, and systemd's.
type elsewhere struct{}

var errElsewhere = errors.New("the service is not run by its installer")

func (elsewhere) Start(service.Service) error { return errElsewhere }
func (elsewhere) Stop(service.Service) error  { return errElsewhere }

// executable returns the path of the running program, to be run as a service
// for years: not one that is deleted tomorrow.
func executable() (string, error) {
	path, err := os.Executable()
	if err == nil {
		path, err = filepath.EvalSymlinks(path)
	}
	if err != nil {
		return "", fmt.Errorf("the path of this program: %w", err)
	}
	return path, nil
}
