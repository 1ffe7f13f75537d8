// SPDX-License-Identifier: Apache-2.0

package service

import (
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sys/windows"
)

// The error of the service manager for users other than administrators states what
// to do. Wine rejects no user, so that the test passes the error itself.
func TestDenied(t *testing.T) {
	err := explain("install", fmt.Errorf("connect: %w", windows.ERROR_ACCESS_DENIED))
	if !strings.Contains(err.Error(), "administrator") {
		t.Error(err)
	}
}
