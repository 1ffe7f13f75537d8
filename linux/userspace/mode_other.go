// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package userspace

import (
	"context"
	"errors"
	"log/slog"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/relay"
)

var errLinux = errors.New("redirect rules need Linux; on this system only plan works")

func probe(context.Context) error { return errLinux }

func opener(func() relay.Handover) func(context.Context, *config.Config, *slog.Logger) (dataplane.Backend, error) {
	return func(context.Context, *config.Config, *slog.Logger) (dataplane.Backend, error) { return nil, errLinux }
}

func remove(context.Context, *config.Config) error { return errLinux }
