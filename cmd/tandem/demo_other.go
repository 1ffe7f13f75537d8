// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package main

import (
	"errors"

	"github.com/spf13/cobra"
)

func demo(cmd *cobra.Command, _ bool) error {
	return demoPlan(cmd, errors.New("requires network namespaces of Linux"))
}
