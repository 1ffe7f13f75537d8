// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"
)

// document is an answer of the running tandem that knows its form for people.
type document interface{ Write(io.Writer) error }

// reportOf is the report of a document. Its text is printable.
func reportOf(d document) report {
	return report{document: d, text: func(s *screen) error { return d.Write(&s.text) }}
}

// twoArgs accepts exactly FROM and TO.
func twoArgs(c *cobra.Command, args []string) error {
	if len(args) != 2 {
		return usageError{fmt.Errorf("%s takes two arguments, FROM and TO, not %d", c.CommandPath(), len(args))}
	}
	return nil
}

// errDiffers says that the data plane is not as desired; the standard output tells how.
const errDiffers = pendingError("the data plane differs from the desired state")
