// SPDX-License-Identifier: Apache-2.0

package windows

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// Signature is what files are signed with (Authenticode).
type Signature struct {
	Certificates string // file with the chain, PEM
	Key          string // file with the key, PEM
	TimeServer   string // URL of an RFC 3161 server; without one a signature ends with its certificate
}

// sign signs a program or an MSI in place; nil signs nothing.
func (s *Signature) sign(ctx context.Context, file string) error {
	if s == nil {
		return nil
	}
	args := []string{
		"sign", "-certs", s.Certificates, "-key", s.Key, "-h", "sha256",
		"-n", "Tandem service proxy", "-i", "https://github.com/tandem-proxy/tandem",
	}
	if s.TimeServer != "" {
		args = append(args, "-ts", s.TimeServer)
	}
	signed := file + ".signed"
	if err := call(ctx, "", "osslsigncode", append(args, "-in", file, "-out", signed)...); err != nil {
		return err
	}
	return os.Rename(signed, file)
}

// call runs a tool, whose words are the error.
func call(ctx context.Context, dir, tool string, args ...string) error {
	cmd := exec.CommandContext(ctx, tool, args...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", tool, err, strings.TrimSpace(string(out)))
	}
	return nil
}
