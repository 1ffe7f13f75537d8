//go:build !windows

package service

import (
	"context"
	"errors"
	"log/slog"
)

// prepare makes what the service needs besides itself.
func prepare() error { return nil }

// refine sets what kardianos/service does not.
func refine() error { return nil }

// Serve is for Windows.
func Serve(*slog.Logger, func(ctx context.Context, ready func()) error) error {
	return errors.New("--windows-service is for Windows; on this system the service manager runs the program as it is")
}
