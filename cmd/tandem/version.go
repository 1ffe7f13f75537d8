// SPDX-License-Identifier: Apache-2.0

package main

import (
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// version is stamped at build time with -ldflags "-X main.version=...".
var version string

// versionText is the stamped version, else what the build knows of its source.
func versionText() string {
	if version != "" {
		return version
	}
	info, ok := debug.ReadBuildInfo()
	if ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	return "devel"
}

// build is what `tandem version` says of this program.
type build struct {
	Version  string `json:"version"`
	Platform string `json:"platform"`
	Go       string `json:"go"`
}

func newVersion() *cobra.Command {
	var out output
	c := &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		RunE: func(cmd *cobra.Command, _ []string) error {
			b := build{versionText(), runtime.GOOS + "/" + runtime.GOARCH, runtime.Version()}
			return out.print(cmd, report{document: b, text: func(s *screen) error {
				s.printf("tandem %s %s %s\n", b.Version, b.Platform, b.Go)
				return nil
			}})
		},
	}
	out.register(c)
	return c
}
