// SPDX-License-Identifier: Apache-2.0

package systemd

import (
	_ "embed"
	"strings"
)

//go:embed tandem.service
var template string

// Unit returns the text of the unit that runs a program with arguments. With a
// config file it is not started while that file does not exist, which systemd logs;
// with "" it is always.
func Unit(program string, arguments []string, config string) string {
	words := []string{word(program)}
	for _, a := range arguments {
		words = append(words, word(a))
	}
	condition := "# Always: no configuration file is needed."
	if config != "" && !strings.ContainsAny(config, "\r\n") {
		condition = "ConditionPathExists=" + path(config)
	}
	return strings.NewReplacer("@COMMAND@", strings.Join(words, " "), "@CONDITION@", condition).Replace(template)
}

// word quotes a word of a command line as systemd.service(5) reads it: between
// quotes backslashes escape, and everywhere % is a specifier and $ a variable.
func word(s string) string {
	const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./=:,@+"
	if s != "" && strings.Trim(s, plain) == "" {
		return s
	}
	return `"` + strings.NewReplacer(
		`\`, `\\`, `"`, `\"`, "\n", `\n`, "\t", `\t`, "\r", `\r`, "%", "%%", "$", "$$",
		"{", `\x7b`, // nothing that reads this as a template finds one
	).Replace(s) + `"`
}

// path escapes a path of a setting that takes one: to the end of the line it is
// literal, except specifiers.
func path(s string) string { return strings.ReplaceAll(s, "%", "%%") }
