// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"testing"

	"github.com/spf13/cobra"

	"github.com/tandem-proxy/tandem/core/snapshot"
)

// A mode that counts no connections is no mistake on the command line, and has the exit code
// that the help names.
func TestTopOfAModeWithoutCounts(t *testing.T) {
	err := topFromSnapshot(&cobra.Command{}, &output{}, &snapshot.File{Header: snapshot.Header{Mode: "kernelspace"}}, &filter{}, 0, nil)
	if code := exitCode(err); code != exitUsage || errors.As(err, new(usageError)) {
		t.Errorf("exit code %d, want %d: %#v", code, exitUsage, err)
	}
}
