// Validates the bundle in a directory as `operator-sdk bundle validate` does, with all optional suites: with the
// validators of operator-framework/api, after the checks of files and annotations of operator-registry.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/operator-framework/api/pkg/manifests"
	"github.com/operator-framework/api/pkg/validation"
	"github.com/operator-framework/api/pkg/validation/errors"
	validator "github.com/operator-framework/api/pkg/validation/interfaces"
	registrybundle "github.com/operator-framework/operator-registry/pkg/lib/bundle"
	"github.com/sirupsen/logrus"
)

type suite struct {
	name      string
	validator validator.Validator
}

// The names of the optional suites are those of `operator-sdk bundle validate --list-optional`.
var suites = []suite{
	{"default", validation.DefaultBundleValidators},
	{"operatorhub", validation.OperatorHubValidator},
	{"operatorhub/v2", validation.OperatorHubV2Validator},
	{"standardcapabilities", validation.StandardCapabilitiesValidator},
	{"standardcategories", validation.StandardCategoriesValidator},
	{"bundle-objects", validation.ObjectValidator},
	{"community", validation.CommunityOperatorValidator},
	{"alpha-deprecated-apis", validation.AlphaDeprecatedAPIsValidator},
	{"good-practices", validation.GoodPracticesValidator},
	// Runs `docker` to find the platforms of the images.
	{"multiarch", validation.MultipleArchitecturesValidator},
}

type finding struct {
	Suite    string `json:"suite"`
	Severity string `json:"severity"`
	Message  string `json:"message"`
}

func main() {
	directory := os.Args[1]
	logrus.SetOutput(os.Stderr)
	ran, findings := []string{"format", "content"}, []finding{}
	layout := registrybundle.NewImageValidator(nil, logrus.NewEntry(logrus.StandardLogger()))
	if err := layout.ValidateBundleFormat(directory); err != nil {
		findings = append(findings, finding{"format", "Error", err.Error()})
	}
	if err := layout.ValidateBundleContent(filepath.Join(directory, "manifests")); err != nil {
		findings = append(findings, finding{"content", "Error", err.Error()})
	}
	bundle, err := manifests.GetBundleFromDir(directory)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	for _, one := range suites {
		ran = append(ran, one.name)
		for _, result := range one.validator.Validate(bundle.ObjectsToValidate()...) {
			for _, found := range append(append([]errors.Error{}, result.Errors...), result.Warnings...) {
				findings = append(findings, finding{one.name, string(found.Level), found.Error()})
			}
		}
	}
	json.NewEncoder(os.Stdout).Encode(map[string]any{"suites": ran, "findings": findings})
}
