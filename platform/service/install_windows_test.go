// SPDX-License-Identifier: Apache-2.0

package service

import (
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sys/windows"
)

// What the service manager refuses to people who are no administrators states what
// to do. Wine refuses nobody, so that it takes the error itself.
func TestDenied(t *testing.T) {
	err := explain("install", fmt.Errorf("connect: %w", windows.ERROR_ACCESS_DENIED))
	if !strings.Contains(err.Error(), "administrator") {
		t.Error(err)
	}
}
