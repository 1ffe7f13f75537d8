// SPDX-License-Identifier: Apache-2.0

package main

import (
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tandem-proxy/tandem/core/metrics"
)

// version is stamped at build time with -ldflags "-X main.version=...".
var version string

// versionText is the stamped version, else that of the build information.
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

// differencesPage documents the differences from kube-proxy, which logs and config check
// name.
const differencesPage = "https://github.com/tandem-proxy/tandem/blob/main/.github/DIFFERENCES.md"

// kubeProxyVersion is what a program called kube-proxy prints: the release that it
// replaces, as scripts parse it, with ours as its build metadata.
func kubeProxyVersion(ours string) string {
	ours = strings.Map(func(r rune) rune {
		if r == '.' || '0' <= r && r <= '9' || 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' {
			return r
		}
		return '-'
	}, strings.TrimPrefix(ours, "v"))
	return "Kubernetes v" + metrics.Kubernetes + "+tandem." + ours
}

// build is what `tandem version` prints about this program.
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
