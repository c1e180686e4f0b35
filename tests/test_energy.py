"""Energy is counted where the machine counts it, called an estimate where stated, else unknown."""

from __future__ import annotations

import ctypes

import pytest

from minserve.energy import NOT_MEASURED, Energy, EnergyMeter, Nvml, Rapl


def package(folder, number, energy_uj, range_uj=1_000_000_000):
    made = folder / f"intel-rapl:{number}"
    made.mkdir(exist_ok=True)
    (made / "max_energy_range_uj").write_text(f"{range_uj}\n")
    (made / "energy_uj").write_text(f"{energy_uj}\n")


def test_all_packages_are_counted_from_the_beginning_on_and_over_a_wrap(tmp_path):
    package(tmp_path, 0, 999_000_000)
    package(tmp_path, 1, 5_000_000)
    (tmp_path / "intel-rapl:0:0").mkdir()  # a part of package 0, which has it already
    rapl = Rapl(tmp_path)
    assert rapl.joules() == 0
    package(tmp_path, 0, 1_999_999)  # begins again after 1,000,000,000
    package(tmp_path, 1, 12_000_000)
    assert rapl.joules() == pytest.approx(3.0 + 7.0)
    assert rapl.joules() == pytest.approx(10.0)


class FakeNvml:
    """Two GPUs, as the driver's library shows them."""

    def __init__(self, status=0):
        self.status, self.millijoules = status, {0: 1000, 1: 50_000}

    def nvmlInit_v2(self):  # noqa: N802
        return self.status

    def nvmlDeviceGetCount_v2(self, count):  # noqa: N802
        count._obj.value = 2
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index, device):  # noqa: N802
        device._obj.value = index + 1
        return 0

    def nvmlDeviceGetTotalEnergyConsumption(self, device, found):  # noqa: N802
        assert isinstance(found._obj, ctypes.c_ulonglong)
        found._obj.value = self.millijoules[device.value - 1]
        return 0


def test_all_gpus_are_counted():
    library = FakeNvml()
    nvml = Nvml(lambda name: library)
    library.millijoules = {0: 4000, 1: 50_500}
    assert nvml.joules() == pytest.approx(3.5)


def test_a_gpu_that_counts_nothing_is_no_counter():
    with pytest.raises(OSError, match="3"):
        Nvml(lambda name: FakeNvml(status=3))


def test_what_can_be_read_is_added_up_and_named(tmp_path):
    package(tmp_path, 0, 0)
    library = FakeNvml()
    meter = EnergyMeter((lambda: Rapl(tmp_path), lambda: Nvml(lambda name: library)))
    package(tmp_path, 0, 2_000_000)
    library.millijoules[0] += 1000
    assert meter.read(10.0, stated_watts=65) == Energy(3.0, "RAPL, NVML")


def test_without_a_counter_it_is_an_estimate_if_a_power_is_stated_and_else_not_measured(tmp_path):
    meter = EnergyMeter((lambda: Rapl(tmp_path),))
    assert meter.read(10.0, 65) == Energy(650.0, "estimated from a stated 65 W")
    assert meter.read(10.0) == Energy(None, NOT_MEASURED)
    assert meter.read().per(5) is None and Energy(650.0, "x").per(10) == 65.0
    assert Energy(650.0, "x").per(0) is None


def test_a_counter_that_is_locked_is_not_measured(tmp_path):
    package(tmp_path, 0, 0)
    (tmp_path / "intel-rapl:0" / "energy_uj").write_text("no\n")
    assert EnergyMeter((lambda: Rapl(tmp_path),)).read() == Energy()


def test_a_counter_that_vanishes_while_counting_is_left_out(tmp_path):
    package(tmp_path, 0, 0)
    meter = EnergyMeter((lambda: Rapl(tmp_path),))
    (tmp_path / "intel-rapl:0" / "energy_uj").unlink()
    assert meter.read() == Energy()
