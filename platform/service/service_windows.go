package service

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/windows"
	"golang.org/x/sys/windows/svc/mgr"

	"github.com/tandem-proxy/tandem/windows/folders"
)

// What happens when the service fails: it is started again after these waits,
// the last of them from then on; a day without failure begins anew.
const (
	firstRestart, secondRestart, furtherRestarts = 5 * time.Second, 10 * time.Second, time.Minute
	forgiven                                     = 24 * 60 * 60 // seconds
)

// arguments returns those by which the service manager starts the program.
func arguments(args []string) []string { return append(args, "--windows-service=true") }

// privileged, undo and removable have nothing to say: the service manager checks
// access itself, and keeps nothing of a service that it refused.
func privileged() error { return nil }
func undo() error       { return nil }
func removable() error  { return nil }

// prepare makes what the service needs besides itself.
func prepare() error {
	_, err := folders.Make()
	return err
}

// refine sets what kardianos/service does not: recovery that also follows an
// exit with an error, and an identity of its own for access rights.
func refine() error {
	return change(Name, func(s *mgr.Service) error {
		if err := recovery(s); err != nil {
			return err
		}
		c, err := s.Config()
		if err == nil {
			c.SidType = windows.SERVICE_SID_TYPE_UNRESTRICTED
			err = s.UpdateConfig(c)
		}
		if err := able(err); err != nil {
			return fmt.Errorf("set the service's identity: %w", err)
		}
		return nil
	})
}

// ensureRecovery sets the recovery actions of a service that has none: an MSI
// cannot set those that follow an exit with an error. Others stay.
func ensureRecovery(name string) error {
	return change(name, func(s *mgr.Service) error {
		have, err := s.RecoveryActions()
		if err != nil || len(have) > 0 {
			return able(err)
		}
		return recovery(s)
	})
}

// recovery sets the recovery actions.
func recovery(s *mgr.Service) error {
	actions := []mgr.RecoveryAction{
		{Type: mgr.ServiceRestart, Delay: firstRestart},
		{Type: mgr.ServiceRestart, Delay: secondRestart},
		{Type: mgr.ServiceRestart, Delay: furtherRestarts},
	}
	if err := able(s.SetRecoveryActions(actions, forgiven)); err != nil {
		return fmt.Errorf("set the recovery actions: %w", err)
	}
	if err := able(s.SetRecoveryActionsOnNonCrashFailures(true)); err != nil {
		return fmt.Errorf("set the recovery actions for errors: %w", err)
	}
	return nil
}

// able forgives a service manager that does not know a setting: Wine's knows
// neither recovery nor identities.
func able(err error) error {
	if errors.Is(err, windows.ERROR_INVALID_LEVEL) {
		return nil
	}
	return err
}

// change opens a service and changes it.
func change(name string, f func(*mgr.Service) error) (err error) {
	m, err := mgr.Connect()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Disconnect()) }()
	s, err := m.OpenService(name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	return f(s)
}
