// SPDX-License-Identifier: Apache-2.0

//go:build !windows

package hns

import (
	"context"
	"errors"
	"log/slog"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/dataplane"
)

var errWindows = errors.New("HNS needs Windows; on this system only plan works")

func probe(context.Context) error { return errWindows }

func awaitNetwork(context.Context, *config.Config) error { return errWindows }

func openBackend(context.Context, *config.Config, *slog.Logger) (dataplane.Backend, error) {
	return nil, errWindows
}

func remove(context.Context, *config.Config) error { return errWindows }

// Local returns the HNS of this machine and its settings. The caller
// closes it.
func Local() (HNS, Settings, error) { return nil, Settings{}, errWindows }
