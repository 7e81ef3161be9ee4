package engine

import "time"

// serverVersion is an engine version that ships the configured API version.
func (e *Engine) serverVersion() string {
	switch {
	case e.atLeast("1.47"):
		return "27.5.1"
	case e.atLeast("1.44"):
		return "25.0.5"
	case e.atLeast("1.42"):
		return "23.0.6"
	}
	return "20.10.24"
}

func (e *Engine) versionJSON() object {
	const built = "2024-01-01T00:00:00.000000000+00:00"
	details := object{"ApiVersion": e.cfg.APIVersion, "Arch": "amd64", "BuildTime": built, "Experimental": "false",
		"GitCommit": "lab", "GoVersion": "go1.21.0", "KernelVersion": "6.1.0-lab", "MinAPIVersion": minAPI, "Os": "linux"}
	return object{"Platform": object{"Name": "Lab Engine"}, "Components": []object{{"Name": "Engine", "Version": e.serverVersion(), "Details": details}},
		"Version": e.serverVersion(), "ApiVersion": e.cfg.APIVersion, "MinAPIVersion": minAPI, "GitCommit": "lab",
		"GoVersion": "go1.21.0", "Os": "linux", "Arch": "amd64", "KernelVersion": "6.1.0-lab", "BuildTime": built}
}

func (e *Engine) infoJSON() object {
	running, stopped := 0, 0
	for _, c := range e.containers {
		if c.running() {
			running++
		} else {
			stopped++
		}
	}
	return object{"ID": e.networks["bridge"].id[:12], "Containers": len(e.containers), "ContainersRunning": running,
		"ContainersPaused": 0, "ContainersStopped": stopped, "Images": len(e.images), "Driver": "overlay2",
		"DriverStatus":       [][]string{{"Backing Filesystem", "extfs"}, {"Supports d_type", "true"}, {"Native Overlay Diff", "true"}},
		"Plugins":            object{"Volume": []string{"local"}, "Network": []string{"bridge", "host", "null"}, "Authorization": nil, "Log": []string{"json-file"}},
		"SystemTime":         time.Now().UTC().Format(time.RFC3339Nano),
		"LoggingDriver":      "json-file",
		"CgroupDriver":       "cgroupfs",
		"CgroupVersion":      "1",
		"KernelVersion":      "6.1.0-lab",
		"OperatingSystem":    "QNet lab host",
		"OSType":             "linux",
		"Architecture":       "x86_64",
		"NCPU":               2,
		"MemTotal":           8 << 30,
		"DockerRootDir":      "/var/lib/docker",
		"Name":               e.cfg.Host,
		"ServerVersion":      e.serverVersion(),
		"LiveRestoreEnabled": false,
		"Labels":             []string{},
		"SecurityOptions":    []string{"name=seccomp,profile=default"},
		"Warnings":           nil}
}

// dfJSON answers GET /system/df.
func (e *Engine) dfJSON(version string) (any, error) {
	images, err := e.listImages(nil)
	if err != nil {
		return nil, err
	}
	var layersSize int64
	for _, img := range e.images {
		layersSize += img.image.Size
	}
	containers, err := e.list(nil, true, 0, version)
	if err != nil {
		return nil, err
	}
	volumes := []object{}
	for _, name := range sortedKeys(e.volumes) {
		o := e.volumes[name].json()
		o["UsageData"] = object{"RefCount": len(e.volumeUsers(name)), "Size": 0}
		volumes = append(volumes, o)
	}
	return object{"LayersSize": layersSize, "Images": images, "Containers": containers, "Volumes": volumes, "BuildCache": nil, "BuilderSize": 0}, nil
}
