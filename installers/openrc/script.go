// SPDX-License-Identifier: Apache-2.0

// Package openrc is the script that runs tandem under OpenRC: what `tandem install`
// writes where there is OpenRC, and what the package for Alpine Linux contains.
//
//	tandem.openrc ─Script──▶ /etc/init.d/tandem
//
// Kernel parameters are set before the start (run --init-only); the supervisor
// restarts the proxy without limit.
package openrc

import (
	_ "embed"
	"strings"
)

//go:embed tandem.openrc
var template string

// Script returns the text of the script that runs a program with arguments. With a
// config file it is not started while that does not exist; with "" it is always.
func Script(program string, arguments []string, config string) string {
	words := make([]string, len(arguments))
	for i, a := range arguments {
		words[i] = quote(a)
	}
	required := "# No configuration file is needed."
	if config != "" {
		required = "required_files=" + quote(config)
	}
	// OpenRC evaluates the arguments a second time: they are quoted twice.
	return strings.NewReplacer("@PROGRAM@", quote(program), "@ARGUMENTS@", quote(strings.Join(words, " ")), "@REQUIRED@", required).Replace(template)
}

// quote makes one word of a shell.
func quote(s string) string {
	const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./=:,@+"
	if s != "" && strings.Trim(s, plain) == "" {
		return s
	}
	// Nothing that reads this as a template finds one.
	return "'" + strings.ReplaceAll(strings.ReplaceAll(s, "'", `'\''`), "{{", "{''{") + "'"
}
