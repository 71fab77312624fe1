/* A shared object that is no backend. */
int psd_test_stranger(void);
__attribute__((visibility("default"))) int psd_test_stranger(void)
{
    return 1;
}
