// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package main

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/tandem-proxy/tandem/platform/connectivity"
)

func demo(cmd *cobra.Command, _ bool) error {
	return demoPlan(cmd, errors.New("requires network namespaces of Linux"))
}

// errNoNamespaces is why nothing can be made here.
var errNoNamespaces = errors.New("requires network namespaces of Linux; on this system there is tandem test connectivity --existing")

func (f *connectivityFlags) made(*cobra.Command, connectivity.Options) error { return errNoNamespaces }

func (f *disruptFlags) made(*cobra.Command, connectivity.Options) error { return errNoNamespaces }
