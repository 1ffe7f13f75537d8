// SPDX-License-Identifier: Apache-2.0

package service

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/windows"
	"golang.org/x/sys/windows/svc/mgr"
)

// What happens when the service fails: it is restarted after these delays, the last
// of them afterwards; a day without failure resets the count.
const (
	firstRestart, secondRestart, furtherRestarts = 5 * time.Second, 10 * time.Second, time.Minute
	resetAfter                                   = 24 * 60 * 60 // seconds
)

// arguments returns those by which the service manager starts the program.
func arguments(args []string) []string { return append(args, "--windows-service=true") }

// checkPrivileges, removeUnit and checkRemovable have nothing to do: the service
// manager checks access itself, and keeps nothing of a service that it rejected. It has no files for services.
func checkPrivileges() error       { return nil }
func removeUnit(_, _ string) error { return nil }
func checkRemovable() error        { return nil }
func installedUnit() string        { return "" }

// setServiceOptions sets what kardianos/service does not: recovery that also follows
// an exit with an error, and an identity of its own for access rights.
func setServiceOptions() error {
	return change(Name, func(s *mgr.Service) error {
		if err := recovery(s); err != nil {
			return err
		}
		c, err := s.Config()
		if err == nil {
			c.SidType = windows.SERVICE_SID_TYPE_UNRESTRICTED
			err = s.UpdateConfig(c)
		}
		if err := supported(err); err != nil {
			return fmt.Errorf("set the service SID: %w", err)
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
			return supported(err)
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
	if err := supported(s.SetRecoveryActions(actions, resetAfter)); err != nil {
		return fmt.Errorf("set the recovery actions: %w", err)
	}
	if err := supported(s.SetRecoveryActionsOnNonCrashFailures(true)); err != nil {
		return fmt.Errorf("set the recovery actions for errors: %w", err)
	}
	return nil
}

// supported drops the error of a service manager that lacks a setting: Wine's has
// neither recovery actions nor service SIDs.
func supported(err error) error {
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
