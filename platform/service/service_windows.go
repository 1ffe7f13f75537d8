package service

import (
	"fmt"
	"time"

	"golang.org/x/sys/windows"
	"golang.org/x/sys/windows/svc/mgr"
)

// What happens when the service fails: it is started again after these waits,
// the last of them from then on; a day without failure begins anew.
const (
	firstRestart, secondRestart, furtherRestarts = 5 * time.Second, 10 * time.Second, time.Minute
	forgiven                                     = 24 * 60 * 60 // seconds
)

// privileged, undo and removable have nothing to say: the service manager checks
// access itself, and keeps nothing of a service that it refused.
func privileged() error { return nil }
func undo() error       { return nil }
func removable() error  { return nil }

// prepare makes what the service needs besides itself.
func prepare() error {
	_, err := Directories()
	return err
}

// refine sets what kardianos/service does not: recovery that also follows an
// exit with an error, and an identity of its own for access rights.
func refine() (err error) {
	m, err := mgr.Connect()
	if err != nil {
		return err
	}
	defer func() { _ = m.Disconnect() }()
	s, err := m.OpenService(Name)
	if err != nil {
		return err
	}
	defer s.Close()
	actions := []mgr.RecoveryAction{
		{Type: mgr.ServiceRestart, Delay: firstRestart},
		{Type: mgr.ServiceRestart, Delay: secondRestart},
		{Type: mgr.ServiceRestart, Delay: furtherRestarts},
	}
	if err := s.SetRecoveryActions(actions, forgiven); err != nil {
		return fmt.Errorf("set the recovery actions: %w", err)
	}
	if err := s.SetRecoveryActionsOnNonCrashFailures(true); err != nil {
		return fmt.Errorf("set the recovery actions for errors: %w", err)
	}
	c, err := s.Config()
	if err != nil {
		return err
	}
	c.SidType = windows.SERVICE_SID_TYPE_UNRESTRICTED
	if err := s.UpdateConfig(c); err != nil {
		return fmt.Errorf("set the service's identity: %w", err)
	}
	return nil
}
