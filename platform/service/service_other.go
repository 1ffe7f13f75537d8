//go:build !windows

package service

import (
	"context"
	"os"
)

// prepare makes what the service needs besides itself.
func prepare() error { return nil }

// refine sets what kardianos/service does not.
func refine() error { return nil }

// arguments returns those by which the service manager starts the program.
func arguments(args []string) []string { return args }

// guarded reports whether a program may become a service: whoever can write to
// /usr/bin is root already.
func guarded(string) error { return nil }

// Serve runs a program as it is: no service manager here wants to be talked to.
func Serve(ctx context.Context, p Program) error {
	return p.Work(ctx, os.Stderr, func() {})
}
