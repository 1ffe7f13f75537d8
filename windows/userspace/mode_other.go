// SPDX-License-Identifier: Apache-2.0

//go:build !windows

package userspace

import (
	"context"
	"errors"
	"log/slog"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/dataplane"
)

var errWindows = errors.New("assigning addresses to an adapter needs Windows; on this system only plan works")

func probe(context.Context) error { return errWindows }

func open(context.Context, *config.Config, *slog.Logger) (dataplane.Backend, error) {
	return nil, errWindows
}
